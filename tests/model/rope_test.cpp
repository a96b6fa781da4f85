// Checked against: tables computed with NumPy from the formulas of the RoFormer and YaRN papers (float32 angles), and
// the closed form for position 0.
#include "engine/model/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

// Half a unit in the last place of values near 1 on either side, times a factor that was itself rounded.
constexpr float kTolerance = 3e-7f;

// `expected`: cos of all frequencies, then sin.
void check_row(const Json& config, int64_t dim, int64_t position, const std::vector<float>& expected) {
  const RopeTable table =
      make_rope_table(read_rope_settings(config, dim, config["max_position_embeddings"]), position + 1);
  REQUIRE(table.half == dim / 2);
  REQUIRE(static_cast<int64_t>(table.cos.size()) == (position + 1) * table.half);
  REQUIRE(table.sin.size() == table.cos.size());
  for (int64_t j = 0; j < table.half; ++j) {
    const auto at = static_cast<size_t>(position * table.half + j);
    CHECK(std::abs(table.cos[at] - expected[static_cast<size_t>(j)]) < kTolerance);
    CHECK(std::abs(table.sin[at] - expected[static_cast<size_t>(j + table.half)]) < kTolerance);
  }
}

std::string refusal(const char* rope, const char* more = "") {
  const Json config = Json::parse(std::string("{\"rope_scaling\":") + rope + more + "}");
  return error_of([&] { read_rope_settings(config, 64, 4096); });
}

}  // namespace

TEST_CASE("default tables") {
  const Json config = Json::parse(R"({"rope_theta": 1e6, "max_position_embeddings": 40960})");
  check_row(config, 8, 0, {1, 1, 1, 1, 0, 0, 0, 0});
  check_row(config, 8, 1,
            {0.5403022766113281f, 0.999500036239624f, 0.9999995231628418f, 1.0f, 0.8414710164070129f,
             0.031617503613233566f, 0.0009999999310821295f, 3.162277789670043e-05f});
  check_row(config, 8, 40959,
            {0.46689721941947937f, 0.6208190321922302f, -0.9930108189582825f, 0.27208492159843445f,
             -0.8843116164207458f, 0.7839539051055908f, -0.11802322417497635f, 0.9622732400894165f});
}

TEST_CASE("proportional: the exponents of the whole head, the first pairs of it turn; settings of a layer type") {
  const Json config = Json::parse(R"({"rope_parameters": {"full_attention": {"rope_type": "proportional",
      "partial_rotary_factor": 0.6, "rope_theta": 20000.0, "factor": 2.0}, "sliding_attention": {"rope_theta": 500.0}}})");
  const RopeSettings full = read_rope_settings(config, 16, 4096, 10000, "full_attention");
  REQUIRE(full.proportional.has_value());
  CHECK(full.proportional->rotating == 4);  // 0.6 * 16 / 2, rounded down
  const RopeTable table = make_rope_table(full, 1000);
  REQUIRE(table.half == 8);
  const float cos[] = {
      -0.999912440776825f, 0.9451239705085754f, -0.39743849635124207f, 0.9263037443161011f, 1, 1, 1, 1};
  const float sin[] = {0.013231534510850906f, 0.3267119824886322f, -0.917628824710846f, -0.3767775297164917f};
  for (size_t j = 0; j < 8; ++j) {
    CHECK(std::abs(table.cos[999 * 8 + j] - cos[j]) < kTolerance);
    CHECK(std::abs(table.sin[999 * 8 + j] - (j < 4 ? sin[j] : 0)) < kTolerance);
  }
  const RopeSettings sliding = read_rope_settings(config, 16, 4096, 10000, "sliding_attention");
  CHECK(sliding.theta == 500);
  CHECK(!sliding.proportional.has_value());
  CHECK(mentions(error_of([&] { read_rope_settings(config, 16, 4096, 10000, "compressed"); }),
                 {"rope_parameters.compressed"}));
  CHECK(mentions(error_of([&] { read_rope_settings(Json::object(), 16, 4096, 10000, "full_attention"); }),
                 {"rope_parameters", "layer type"}));
}

TEST_CASE("yarn as users add it to Qwen3, old key names") {
  const Json config = Json::parse(R"({"rope_theta": 1e6, "max_position_embeddings": 40960,
      "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})");
  check_row(config, 16, 1,
            {0.6152040958404541f, 1.1206735372543335f, 1.138060212135315f, 1.138619303703308f, 1.1386293172836304f,
             1.13862943649292f, 1.13862943649292f, 1.13862943649292f, 0.9581236839294434f, 0.20141465961933136f,
             0.03600062057375908f, 0.004802223760634661f, 0.0005693147541023791f, 5.062003037892282e-05f,
             9.001656508189626e-06f, 1.6007460317268851e-06f});
  check_row(config, 16, 131071,
            {-0.9313800930976868f, -0.9332488775253296f, -0.5487766861915588f, 1.1303725242614746f,
             -1.0311708450317383f, 1.0222034454345703f, 0.580117404460907f, 1.1193535327911377f, -0.654987096786499f,
             -0.6523216366767883f, -0.997657835483551f, -0.1368756890296936f, 0.4828703701496124f, -0.5015745759010315f,
             0.9797657132148743f, 0.20862607657909393f});
}

TEST_CASE("yarn without truncation, and with mscale") {
  const Json plain = Json::parse(R"({"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "yarn",
      "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
      "original_max_position_embeddings": 4096}})");
  check_row(plain, 16, 1,
            {0.7275567650794983f, 1.3125063180923462f, 1.3448355197906494f, 1.346542477607727f, 1.3465734720230103f,
             1.3465735912322998f, 1.3465735912322998f, 1.3465735912322998f, 1.1331026554107666f, 0.30097779631614685f,
             0.06839437782764435f, 0.009149842895567417f, 0.0006146891391836107f, 2.449193380016368e-05f,
             5.520922513824189e-06f, 1.24451537431014e-06f});
  const Json scaled = Json::parse(R"({"max_position_embeddings": 163840, "rope_parameters": {"rope_type": "yarn",
      "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 4096}})");
  check_row(scaled, 8, 100,
            {0.7942322492599487f, -0.7728204131126404f, 0.802708089351654f, 0.9210395216941833f, -0.46638423204421997f,
             -0.5010664463043213f, 0.4516400992870331f, 0.0023026035632938147f});
}

TEST_CASE("where a setting is given twice, the stated one wins") {
  const auto read = [](const char* text) { return read_rope_settings(Json::parse(text), 64, 4096); };
  CHECK(read("{}").theta == 10000);
  CHECK(read(R"({"rope_theta": 5e5})").theta == 5e5);
  CHECK(read(R"({"rope_theta": 5e5, "rope_scaling": {"rope_theta": 7e5}})").theta == 7e5);
  CHECK(read(R"({"rope_scaling": {"rope_theta": 7e5}, "rope_parameters": {"rope_theta": 9e5}})").theta == 9e5);
  CHECK(!read(R"({"rope_scaling": null, "rope_parameters": null})").yarn);
  CHECK(!read(R"({"rope_scaling": {"rope_type": "default", "type": "yarn"}})").yarn);
  CHECK(read(R"({"rope_scaling": {"type": "yarn", "factor": 2}})").yarn->original_positions == 4096);
  CHECK(read(R"({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1024}})").yarn->factor == 4);
  CHECK(read(R"({"original_max_position_embeddings": 512,
                 "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1024}})")
            .yarn->original_positions == 512);
  CHECK(read(R"({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.5}})").yarn->attention_factor ==
        1.5);
}

TEST_CASE("rope settings out of range are refused by name") {
  CHECK(mentions(refusal(R"({"type": "linear", "factor": 2})"), {"rope_scaling.type", "linear", "default, yarn"}));
  CHECK(mentions(refusal(R"({"rope_type": 3})"), {"rope_scaling.rope_type", "3"}));
  CHECK(mentions(refusal("[]"), {"rope_scaling", "an object"}));
  CHECK(mentions(refusal(R"({"type": "yarn", "factor": 0.5})"), {"rope_scaling.factor", "0.5", "1 to 10000"}));
  CHECK(refusal(R"({"type": "yarn", "factor": 10000})") == "no error");
  CHECK(refusal(R"({"type": "yarn", "factor": 10001})") != "no error");
  CHECK(mentions(refusal(R"({"type": "yarn", "original_max_position_embeddings": 0})"), {"original_max", "'0'"}));
  CHECK(refusal("null", R"(, "rope_theta": 2)") == "no error");
  CHECK(mentions(refusal("null", R"(, "rope_theta": 1.9)"), {"rope_theta", "1.9"}));
  CHECK(refusal("null", R"(, "rope_theta": 1e12)") == "no error");
  CHECK(refusal("null", R"(, "rope_theta": 1.1e12)") != "no error");
}
