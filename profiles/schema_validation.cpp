#include "profiles/schema_validation.h"

#include <map>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "kernels/base/error.h"
#include "profiles/profile.h"
#include "schemas/schema_text.h"

namespace ft {
namespace {

struct BuiltInSchema {
  Json json;
  valijson::Schema compiled;
};

const BuiltInSchema& find_schema(const std::string& name) {
  static const std::map<std::string, BuiltInSchema> schemas = [] {
    std::map<std::string, BuiltInSchema> built;
    for (const SchemaText& source : schema_texts()) {
      BuiltInSchema& schema = built[std::string(source.name)];
      schema.json = Json::parse(source.text);
      valijson::SchemaParser(valijson::SchemaParser::kDraft7)
          .populateSchema(valijson::adapters::NlohmannJsonAdapter(schema.json), schema.compiled);
    }
    return built;
  }();
  const auto at = schemas.find(name);
  FT_CHECK(at != schemas.end());
  return at->second;
}

}  // namespace

const Json& built_in_schema(const std::string& name) { return find_schema(name).json; }

void validate_schema(const Json& json, const std::string& schema, const std::string& source) {
  const BuiltInSchema& built = find_schema(schema);
  valijson::Validator validator(valijson::Validator::kStrongTypes);
  // Without a results object valijson stops at the first violation: a hostile file cannot make it collect millions.
  if (validator.validate(built.compiled, valijson::adapters::NlohmannJsonAdapter(json), nullptr)) return;
  const Violation unexplained{.what = "it does not match its schema", .path = "$", .value = {}, .allowed = {}};
  const Violation violation = find_violation(json, built.json).value_or(unexplained);
  throw Error(ErrorKind::kUsage, {.what = source + " refused, " + violation.what,
                                  .value = violation.value,
                                  .allowed = violation.allowed,
                                  .path = violation.path});
}

}  // namespace ft
