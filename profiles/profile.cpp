#include "profiles/profile.h"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "profiles/profile_fields.h"
#include "profiles/rules.h"
#include "profiles/samples.h"
#include "profiles/schema_validation.h"

namespace ft {
namespace {

// Texts that are used as they are; whoever shows them makes them printable.
bool is_path(std::string_view key) { return key == "model_path" || key == "routing_preset"; }

// Reads fields from JSON that its schema accepted: types and ranges hold. Texts become printable here, once for all
// that show them: a profile is a file that may come from anybody.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  template <class T>
  void required(const char* key, T& value) const {
    take(key, object_.at(key), value);
  }
  template <class T>
  void present(const char* key, std::optional<T>& value) const {
    if (const auto at = object_.find(key); at != object_.end()) take(key, *at, value.emplace());
  }
  template <class T>
  void unless_empty(const char* key, T& value) const {
    if (const auto at = object_.find(key); at != object_.end()) take(key, *at, value);
  }

 private:
  template <class T>
  static void take(std::string_view key, const Json& json, T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = json.get_ref<const std::string&>();
      if (!is_path(key)) value = printable(value);
    } else {
      read(json, value);
    }
  }
  template <class T>
  static void read(const Json& json, T& value) {
    if constexpr (requires(Reader & reader) { fields(reader, value); }) {
      Reader reader(json);
      fields(reader, value);
    } else {
      json.get_to(value);
    }
  }
  template <class T>
  static void read(const Json& json, std::vector<T>& list) {
    list.resize(json.size());
    for (size_t i = 0; i < list.size(); ++i) read(json[i], list[i]);
  }
  static void read(const Json& json, std::string& text) { text = printable(json.get_ref<const std::string&>()); }
  template <class T>
  static void read(const Json& json, std::map<std::string, T>& map) {
    map.clear();
    for (const auto& [key, value] : json.items()) read(value, map[printable(key)]);
  }

  const Json& object_;
};

class Writer {
 public:
  explicit Writer(OrderedJson& object) : object_(object) { object_ = OrderedJson::object(); }

  template <class T>
  void required(const char* key, const T& value) const {
    write(object_[key], value);
  }
  template <class T>
  void present(const char* key, const std::optional<T>& value) const {
    if (value) write(object_[key], *value);
  }
  template <class T>
  void unless_empty(const char* key, const T& value) const {
    if (!value.empty()) write(object_[key], value);
  }

 private:
  template <class T>
  static void write(OrderedJson& json, const T& value) {
    if constexpr (requires(Writer & writer) { fields(writer, value); }) {
      Writer writer(json);
      fields(writer, value);
    } else {
      json = value;
    }
  }
  template <class T>
  static void write(OrderedJson& json, const std::vector<T>& list) {
    json = OrderedJson::array();
    for (const T& item : list) write(json.emplace_back(), item);
  }

  OrderedJson& object_;
};

struct Version {
  int major = 0, minor = 0, patch = 0;
};

std::optional<Version> parse_version(std::string_view text) {
  Version version;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  int* const parts[] = {&version.major, &version.minor, &version.patch};
  for (int* const part : parts) {
    if (part != parts[0]) {
      if (at == end || *at != '.') return std::nullopt;
      ++at;
    }
    const auto [next, error] = std::from_chars(at, end, *part);
    if (error != std::errc() || *part < 0) return std::nullopt;
    at = next;
  }
  return at == end ? std::optional(version) : std::nullopt;
}

// The version comes first: a file of another major version would only give misleading errors about its keys.
Version check_version(const Json& json, const std::string& source) {
  const std::string allowed = std::to_string(kProfileMajor) + ".MINOR.PATCH";
  const auto refuse = [&](const std::string& what, const std::string& value) {
    throw Error(ErrorKind::kUsage, {.what = source + " refused, " + what,
                                    .value = value,
                                    .allowed = allowed,
                                    .action = "write it again with ft-tune",
                                    .path = "$.version"});
  };
  if (!json.is_object()) {
    throw Error(ErrorKind::kUsage, {.what = source + " refused, value refused",
                                    .value = json.type_name(),
                                    .allowed = "a JSON object",
                                    .path = "$"});
  }
  const auto at = json.find("version");
  if (at == json.end()) refuse("a required key is missing", "");
  if (!at->is_string()) refuse("value refused", at->type_name());
  const std::string& text = at->get_ref<const std::string&>();
  const std::optional<Version> version = parse_version(text);
  if (!version) refuse("value refused", text.empty() ? "(empty)" : text);
  if (version->major != kProfileMajor) refuse("unknown major version", text);
  return *version;
}

template <class T>
T parse(const Json& json, const std::string& schema, const std::string& source) {
  const Version version = check_version(json, source);
  T value;
  if (version.minor > kProfileMinor) {
    const Json known = without_unknown_keys(json, built_in_schema(schema), "serve");
    validate_schema(known, schema, source);
    const Reader reader(known);
    fields(reader, value);
  } else {
    validate_schema(json, schema, source);
    const Reader reader(json);
    fields(reader, value);
  }
  return value;
}

Json read_json(const std::string& path, const std::string& what) {
  JsonLimits limits = kFileJsonLimits;
  limits.max_bytes = kMaxProfileBytes;
  try {
    return read_json_file(path, limits);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.what = what + " refused, " + parts.what;
    throw Error(ErrorKind::kUsage, std::move(parts));
  }
}

template <class T>
std::string json_text(const T& value) {
  OrderedJson json;
  Writer writer(json);
  fields(writer, value);
  try {
    return json.dump(2) + "\n";
  } catch (const OrderedJson::type_error& error) {  // the only one that dump() has
    throw Error(ErrorKind::kUsage, {.what = "cannot write a file that holds text which is not UTF-8",
                                    .value = error.what(),
                                    .allowed = "names and paths in UTF-8"});
  }
}

}  // namespace

std::string profile_version_text() {
  return std::to_string(kProfileMajor) + "." + std::to_string(kProfileMinor) + ".0";
}

Profile parse_profile(const Json& json, const std::string& source) {
  Profile profile = parse<Profile>(json, "profile", source);
  check_profile_rules(profile, source);
  return profile;
}

Profile read_profile(const std::string& path) { return parse_profile(read_json(path, "profile"), "profile " + path); }

OrderedJson profile_to_json(const Profile& profile) {
  OrderedJson json;
  Writer writer(json);
  fields(writer, profile);
  return json;
}

void write_profile(const std::string& path, const Profile& profile) {
  const std::string text = json_text(profile);
  parse_profile(parse_json(text, path), "profile " + path);
  write_file_atomically(path, text);
}

SampleRecord parse_samples(const Json& json, const std::string& source) {
  return parse<SampleRecord>(json, "samples", source);
}

SampleRecord read_samples(const std::string& path) {
  return parse_samples(read_json(path, "samples file"), "samples file " + path);
}

std::string samples_text(const SampleRecord& record) {
  OrderedJson json;
  Writer writer(json);
  fields(writer, record);
  const auto compact = [](const OrderedJson& value) {
    return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  std::string text;
  for (const auto& [key, value] : json.items()) {
    text += (text.empty() ? "{\"" : ",\n \"") + key + "\": ";
    if (key != "measurements") {
      text += compact(value);
      continue;
    }
    for (size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "[\n  " : ",\n  ") + compact(value[i]);
    text += value.empty() ? "[]" : "\n ]";
  }
  return text + "\n}\n";
}

void write_samples(const std::string& path, const SampleRecord& record) {
  const std::string text = json_text(record);
  parse_samples(parse_json(text, path), "samples file " + path);
  write_file_atomically(path, text);
}

}  // namespace ft
