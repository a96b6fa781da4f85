// Checked against: the schema files' own bounds and key lists, walked field by field; valijson and our explanation of a
// violation judge every mutation independently and must agree; the engine's named limits.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/engine_config.h"
#include "kernels/base/error.h"
#include "kernels/host/isa.h"
#include "profiles/schema_validation.h"
#include "schemas/options.h"
#include "schemas/schema_text.h"
#include "tests/profiles/sample_profile.h"

namespace {

using ft::Json;

// A place in the sample, its schema, and whether its parent requires it.
struct Field {
  Json::json_pointer pointer;
  std::string path;  // "$.serve.threads"
  Json schema;
  bool required = false;
};

void collect(const Json& value, const Json& schema, const Json::json_pointer& pointer, const std::string& path,
             bool required, std::vector<Field>& out) {
  out.push_back({pointer, path, schema, required});
  if (value.is_array() && !value.empty()) {
    collect(value[0], schema.at("items"), pointer / size_t{0}, path + "[0]", false, out);
  }
  if (!value.is_object()) return;
  for (const auto& [key, below] : schema.at("properties").items()) {
    const Json& names = schema.at("required");
    const bool needed = std::find(names.begin(), names.end(), key) != names.end();
    collect(value.at(key), below, pointer / key, path + "." + key, needed, out);
  }
}

Json sample_json() { return Json::parse(ft::profile_to_json(sample_profile()).dump()); }

std::vector<Field> sample_fields() {
  std::vector<Field> fields;
  collect(sample_json(), ft::built_in_schema("profile"), Json::json_pointer(), "$", false, fields);
  return fields;
}

void expect_accepted(const Json& json, const std::string& path) {
  CAPTURE(path);
  CHECK_NOTHROW(ft::validate_schema(json, "profile", "p.json"));
  CHECK_FALSE(ft::find_violation(json, ft::built_in_schema("profile")).has_value());
}

// parse_profile refuses it with one line that names the path, and both judges say so.
void expect_refused(const Json& json, const std::string& path, const std::string& what) {
  CAPTURE(path);
  CHECK(ft::find_violation(json, ft::built_in_schema("profile")).has_value());
  CHECK_THROWS_AS(ft::validate_schema(json, "profile", "p.json"), ft::Error);
  try {
    ft::parse_profile(json, "p.json");
    FAIL_CHECK("accepted");
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kUsage);
    CHECK(error.parts().path == path);
    CHECK_FALSE(error.parts().allowed.empty());
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(message.find(what) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
}

}  // namespace

TEST_CASE("every key of the schema is written and nothing else") {
  const std::function<void(const Json&, const Json&, const std::string&)> compare =
      [&](const Json& value, const Json& schema, const std::string& path) {
        CAPTURE(path);
        if (value.is_array()) {
          REQUIRE_FALSE(value.empty());
          compare(value[0], schema.at("items"), path + "[0]");
        }
        if (!value.is_object() || schema.at("additionalProperties") != Json(false)) return;
        std::set<std::string> written, declared;
        for (const auto& [key, below] : value.items()) written.insert(key);
        for (const auto& [key, below] : schema.at("properties").items()) declared.insert(key);
        CHECK(written == declared);
        for (const auto& [key, below] : value.items())
          compare(below, schema.at("properties").at(key), path + "." + key);
      };
  compare(sample_json(), ft::built_in_schema("profile"), "$");
}

TEST_CASE("a required key that is missing is named with what it may hold") {
  int checked = 0;
  for (const Field& field : sample_fields()) {
    if (!field.required || field.path == "$.version") continue;
    Json json = sample_json();
    json.at(field.pointer.parent_pointer()).erase(field.pointer.back());
    expect_refused(json, field.path, "a required key is missing");
    ++checked;
  }
  CHECK(checked > 70);
}

TEST_CASE("an optional key may be absent") {
  for (const Field& field : sample_fields()) {
    if (field.required || field.path == "$" || field.path.ends_with("]")) continue;
    Json json = sample_json();
    json.at(field.pointer.parent_pointer()).erase(field.pointer.back());
    expect_accepted(json, field.path);
  }
}

TEST_CASE("a value of another type is refused everywhere") {
  for (const Field& field : sample_fields()) {
    if (field.path == "$" || field.path == "$.version") continue;
    for (const Json& other :
         {Json(nullptr), Json("text"), Json(true), Json(1.5), Json(-1), Json::array(), Json::object()}) {
      const std::string type = field.schema.at("type");
      const bool same = type == other.type_name() || (other.is_number() && type == "number") ||
                        (other.is_number_integer() && type == "integer");
      if (same) continue;
      Json json = sample_json();
      json.at(field.pointer) = other;
      expect_refused(json, field.path, "value refused");
    }
    if (field.schema.at("type") != "integer") continue;
    Json json = sample_json();
    json.at(field.pointer) = "2";
    expect_refused(json, field.path, "is 'the text \"2\"'; allowed: integer");
  }
}

TEST_CASE("numbers are accepted at their bounds and refused one past") {
  int checked = 0;
  for (const Field& field : sample_fields()) {
    const std::string type = field.schema.at("type");
    if (type != "integer" && type != "number") continue;
    Json json = sample_json();
    const auto put = [&](const Json& value) { json.at(field.pointer) = value; };
    const bool integer = type == "integer";
    for (const char* key : {"minimum", "maximum"}) {
      if (!field.schema.contains(key)) continue;
      const Json bound = field.schema.at(key);
      put(bound);
      expect_accepted(json, field.path);
      const int step = key == std::string("minimum") ? -1 : 1;
      // One past 2^53 - 1 is still exact in a double; past a large bound the next double.
      const double number = bound.get<double>();
      integer ? put(bound.get<int64_t>() + step)
              : put(number == 0 ? step * 1e-9 : std::nextafter(number, step * std::numeric_limits<double>::infinity()));
      expect_refused(json, field.path, "value refused");
      ++checked;
    }
    if (field.schema.contains("exclusiveMinimum")) {
      put(field.schema.at("exclusiveMinimum"));
      expect_refused(json, field.path, "value refused");
    }
    CHECK((!integer || (field.schema.contains("minimum") && field.schema.contains("maximum"))));
  }
  CHECK(checked > 60);
}

TEST_CASE("texts, arrays and choices are accepted at their bounds and refused one past") {
  for (const Field& field : sample_fields()) {
    const std::string type = field.schema.at("type");
    if (field.path == "$.version" || (type != "string" && type != "array")) continue;
    Json json = sample_json();
    Json& place = json.at(field.pointer);
    if (field.schema.contains("enum")) {
      for (const Json& choice : field.schema.at("enum")) {
        place = choice;
        expect_accepted(json, field.path);
      }
      place = "none of them";
      expect_refused(json, field.path, "one of ");
      continue;
    }
    const Json item = type == "array" ? place.at(0) : Json();
    // A multi-byte character: lengths count characters.
    const auto fill = [&](size_t count) {
      if (type == "array") {
        place = Json(count, item);
      } else {
        std::string text;
        for (size_t i = 0; i < count; ++i) text += "\u00e4";
        place = text;
      }
    };
    const std::string low = type == "array" ? "minItems" : "minLength";
    const std::string high = type == "array" ? "maxItems" : "maxLength";
    REQUIRE(field.schema.contains(high));
    if (field.schema.contains(low)) {
      const auto bound = field.schema.at(low).get<size_t>();
      fill(bound), expect_accepted(json, field.path);
      fill(bound - 1), expect_refused(json, field.path, "value refused");
    }
    const auto bound = field.schema.at(high).get<size_t>();
    constexpr size_t kLargestTried = 5000;  // the lists of a million samples have their bound on the whole file instead
    if (bound > kLargestTried) continue;
    fill(bound), expect_accepted(json, field.path);
    fill(bound + 1), expect_refused(json, field.path, "value refused");
  }
}

TEST_CASE("an unknown key is refused in every object") {
  int objects = 0;
  for (const Field& field : sample_fields()) {
    if (field.schema.at("type") != "object" || field.schema.at("additionalProperties") != Json(false)) continue;
    Json json = sample_json();
    json.at(field.pointer)["sl0ts"] = 1;
    expect_refused(json, field.path + ".sl0ts", "unknown key");
    ++objects;
  }
  CHECK(objects >= 12);
}

TEST_CASE("coordinates of a point take any name but numbers only") {
  Json json = sample_json();
  json["measurements"][0]["at"]["anything"] = 3;
  expect_accepted(json, "$.measurements[0].at.anything");
  json["measurements"][0]["at"]["anything"] = "3";
  expect_refused(json, "$.measurements[0].at.anything", "value refused");
}

TEST_CASE("a newer minor version may bring keys outside serve, not in it") {
  Json json = sample_json();
  json["version"] = "1.5.0";
  json["weather"] = "fine";
  json["identity"]["host"]["altitude_m"] = 400;
  json["candidates"][0]["colour"] = "blue";
  const ft::Profile profile = ft::parse_profile(json, "p.json");
  CHECK(profile.candidates.size() == 2);
  CHECK(profile.serve.threads == 2);
  json["serve"]["colour"] = "blue";
  CHECK_THROWS_WITH_AS(ft::parse_profile(json, "p.json"), doctest::Contains("unknown key: $.serve.colour is 'blue'"),
                       ft::Error);
}

TEST_CASE("a profile of version 1.0, which has no hash of data samples, is read as it was") {
  Json json = sample_json();
  json["version"] = "1.0.0";
  CHECK(json["identity"]["model"].erase("data_sample_hash") == 1);
  const ft::Profile profile = ft::parse_profile(json, "p.json");
  CHECK(profile.identity.model.data_sample_hash.empty());
  CHECK(profile.identity.model.index_hash == "1de8");
}

// Keys of serve that came with version 1.3.
constexpr const char* kNewIn13[] = {"fetch_mechanism", "cache_policy", "look_ahead", "max_prefetches_per_layer"};
// With version 1.4.
constexpr const char* kNewIn14[] = {"expected", "fallback"};

TEST_CASE("a profile of version 1.1, which knows nothing of a GPU, is read as it was") {
  Json json = sample_json();
  json["version"] = "1.1.0";
  for (const char* key : {"link", "banks"}) CHECK(json["conditions"].erase(key) == 1);
  CHECK(json["serve"].erase("link_slowdown") == 1);
  for (const char* key : kNewIn13) CHECK(json["serve"].erase(key) == 1);
  for (const char* key : kNewIn14) CHECK(json["serve"].erase(key) == 1);
  const ft::Profile profile = ft::parse_profile(json, "p.json");
  CHECK(profile.conditions.link.empty());
  CHECK(profile.conditions.banks.empty());
  CHECK(!profile.serve.link_slowdown.has_value());
}

TEST_CASE("a profile of version 1.2, without fetch mechanism, cache policy and look-ahead, is read as it was") {
  Json json = sample_json();
  json["version"] = "1.2.0";
  for (const char* key : kNewIn13) CHECK(json["serve"].erase(key) == 1);
  for (const char* key : kNewIn14) CHECK(json["serve"].erase(key) == 1);
  const ft::Profile profile = ft::parse_profile(json, "p.json");
  CHECK(!profile.serve.fetch_mechanism.has_value());
  CHECK(!profile.serve.cache_policy.has_value());
  CHECK(!profile.serve.look_ahead.has_value());
  CHECK(!profile.serve.max_prefetches_per_layer.has_value());
}

TEST_CASE("a profile of version 1.3, without findings, parts of time, replays and expectations, is read as it was") {
  Json json = sample_json();
  json["version"] = "1.3.0";
  for (const char* key : kNewIn14) CHECK(json["serve"].erase(key) == 1);
  CHECK(json["conditions"].erase("findings") == 1);
  CHECK(json.erase("routing") == 1);
  for (Json& parameter : json["cost_model"]["parameters"]) CHECK(parameter.erase("held_out_error_without") == 1);
  for (Json& candidate : json["candidates"]) {
    for (const char* key :
         {"fetch_mechanism", "max_prefetches_per_layer", "parts", "replays", "gap", "missing_us_per_layer"}) {
      CHECK(candidate.erase(key) == 1);
    }
  }
  const ft::Profile profile = ft::parse_profile(json, "p.json");
  CHECK(profile.conditions.findings.empty());
  CHECK(!profile.routing.has_value());
  CHECK(!profile.cost_model.parameters[0].held_out_error_without.has_value());
  CHECK(profile.candidates[0].parts.empty());
  CHECK(profile.candidates[0].replays.empty());
  CHECK(profile.serve.expected.empty());
  CHECK(!profile.serve.fallback.has_value());
  CHECK(!profile.candidates[0].gap.has_value());
  CHECK(!profile.candidates[0].missing_us_per_layer.has_value());
}

TEST_CASE("names of serve that are in no list are refused") {
  for (const char* key : {"fetch_mechanism", "cache_policy", "look_ahead"}) {
    Json json = sample_json();
    json["serve"][key] = "carrier pigeon";
    expect_refused(json, std::string("$.serve.") + key, "value refused");
  }
}

TEST_CASE("versions") {
  const auto refusal = [](const Json& version) -> std::string {
    Json json = sample_json();
    json["version"] = version;
    try {
      ft::parse_profile(json, "p.json");
    } catch (const ft::Error& error) {
      CHECK(error.parts().path == "$.version");
      return error.what();
    }
    return "";
  };
  CHECK(refusal("1.0.0") == "");
  CHECK(refusal("1.0.17") == "");
  CHECK(refusal("2.0.0") ==
        "p.json refused, unknown major version: $.version is '2.0.0'; allowed: 1.MINOR.PATCH; write it again with "
        "ft-tune");
  CHECK(refusal("0.9.0").find("unknown major version") != std::string::npos);
  for (const char* text :
       {"", "1", "1.0", "1.0.0.0", "1.0.0 ", " 1.0.0", "1.-1.0", "v1.0.0", "1.0.x", "99999999999.0.0"}) {
    CAPTURE(text);
    CHECK(refusal(text).find("value refused") != std::string::npos);
  }
  CHECK_FALSE(refusal(1).empty());
  Json json = sample_json();
  json.erase("version");
  CHECK_THROWS_WITH_AS(ft::parse_profile(json, "p.json"), doctest::Contains("a required key is missing: $.version"),
                       ft::Error);
  for (const Json& other : {Json(nullptr), Json::array(), Json("1.0.0"), Json(3)}) {
    CHECK_THROWS_WITH_AS(ft::parse_profile(other, "p.json"), doctest::Contains("a JSON object"), ft::Error);
  }
}

TEST_CASE("the schemas use only keywords that our explanation of a violation knows") {
  const std::set<std::string> known{"$schema",         "title",    "description", "type",      "properties",
                                    "required",        "items",    "enum",        "minimum",   "additionalProperties",
                                    "maximum",         "minItems", "maxItems",    "minLength", "maxLength",
                                    "exclusiveMinimum"};
  const std::function<void(const Json&)> walk = [&](const Json& schema) {
    for (const auto& [name, value] : schema.items()) {
      const std::string& key = name;
      CAPTURE(key);
      CHECK(known.contains(key));
    }
    REQUIRE(schema.contains("type"));
    if (schema.at("type") == "object") {
      REQUIRE(schema.contains("additionalProperties"));
      for (const auto& [key, below] : schema.at("properties").items()) walk(below);
      if (schema.at("additionalProperties").is_object()) walk(schema.at("additionalProperties"));
    }
    if (schema.at("type") == "array") walk(schema.at("items"));
  };
  CHECK(ft::schema_texts().size() == 6);
  for (const ft::SchemaText& schema : ft::schema_texts()) walk(ft::built_in_schema(std::string(schema.name)));
}

TEST_CASE("the limits of serve are the engine's limits and the options'") {
  const Json& serve = ft::built_in_schema("profile").at("properties").at("serve").at("properties");
  CHECK(serve["threads"]["maximum"] == ft::kMaxThreads);
  CHECK(serve["pinning"]["maxItems"] == ft::kMaxThreads);
  CHECK(serve["max_batch"]["maximum"] == ft::kMaxBatch);
  CHECK(serve["prefill_chunk"]["maximum"] == ft::kMaxPrefillChunk);
  CHECK(serve["slots"]["maximum"] == ft::kMaxLayers * ft::kMaxExperts);
  CHECK(serve["fetch_of_misses"]["maxItems"] == ft::kMaxExperts + 1);  // entries for 0 to all experts of a layer
  CHECK(serve["fetch_of_misses"]["items"]["maximum"] == ft::kMaxExperts);
  CHECK(serve["synthetic_seed"]["maximum"] == ft::kMaxSyntheticSeed);
  CHECK(serve["link_slowdown"]["maximum"] == ft::kMaxLinkSlowdown);
  CHECK(serve["max_prefetches_per_layer"]["maximum"] == ft::kMaxPrefetchesPerLayer);
  CHECK(serve["cache_policy"]["enum"] == Json({"lru", "lrfu"}));  // the names of engine/experts/cache_policy.h
  CHECK(serve["look_ahead"]["enum"] == Json({"off", "router"}));
  for (const ft::ProgramSpec& program : {ft::kTuneProgram, ft::kProbeProgram}) {
    const auto option = std::find_if(program.options.begin(), program.options.end(),
                                     [](const ft::OptionSpec& spec) { return spec.name == "--link-slowdown"; });
    REQUIRE(option != program.options.end());
    CHECK(option->high == ft::kMaxLinkSlowdown);
    const auto ahead = std::find_if(program.options.begin(), program.options.end(),
                                    [](const ft::OptionSpec& spec) { return spec.name == "--look-ahead"; });
    REQUIRE(ahead != program.options.end());
    CHECK(ahead->high == ft::kMaxPrefetchesPerLayer);
  }
  CHECK(serve["max_context"]["maximum"] == ft::kMaxListedContext);
  const Json& trace = ft::built_in_schema("routing_trace").at("properties");
  CHECK(trace["layers"]["maximum"] == ft::kMaxLayers);
  CHECK(trace["experts"]["maximum"] == ft::kMaxExperts);
  CHECK(trace["top_k"]["maximum"] == ft::kMaxTopK);
  const auto option = [](std::string_view name) {
    for (const ft::OptionSpec& spec : ft::kTuneProgram.options) {
      if (spec.name == name) return spec.high;
    }
    return 0.0;
  };
  CHECK(option("--threads") == ft::kMaxThreads);
  CHECK(option("--batch") == ft::kMaxBatch);
  CHECK(option("--slots") == ft::kMaxLayers * ft::kMaxExperts);
}

TEST_CASE("the instruction sets of the schema are the kernels'") {
  const Json& host = ft::built_in_schema("profile").at("properties").at("identity").at("properties").at("host");
  Json names = Json::array();
  for (int isa = 0; isa < ft::kIsaCount; ++isa) names.push_back(ft::isa_name(static_cast<ft::Isa>(isa)));
  CHECK(host["properties"]["isa"]["enum"] == names);
}
