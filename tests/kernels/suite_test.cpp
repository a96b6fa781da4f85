// Walks the registry: every kernel is run by the cases of its op against the scalar reference, or skipped with its
// reason. Also: the registry is complete (each op and format has a reference) and its names are unique.
#include "tests/kernels/suite.h"

#include <exception>
#include <set>
#include <string>

#include "kernels/host/isa.h"

namespace {

std::string dotted(std::string_view text) {
  std::string result = ".";
  result += text;
  return result;
}

bool reads_weights(ft::OpId op) { return op == ft::OpId::kMatvec || op == ft::OpId::kGateUp; }

TEST_CASE("every kernel of the registry equals its reference, or is skipped with a reason") {
  int ran = 0;
  int skipped = 0;
  for (const ft::KernelDesc& kernel : ft::kernel_registry()) {
    CAPTURE(kernel.name);
    int cases = 0;
    for (const ft::test::OpCase& op_case : ft::test::op_cases()) {
      if (op_case.op != kernel.op) continue;
      ++cases;
      if (kernel.isa > ft::detect_isa()) continue;
      CAPTURE(op_case.name);
      try {
        op_case.run(kernel, ft::test::reference_of(kernel.op, kernel.format));
      } catch (const std::exception& error) {
        FAIL_CHECK(error.what());
      } catch (...) {
        // a REQUIRE that failed, already reported: the other kernels still get their turn
      }
    }
    CHECK_MESSAGE(cases > 0, "no case covers op ", std::string(ft::op_name(kernel.op)));
    if (kernel.isa > ft::detect_isa()) {
      ++skipped;
      MESSAGE("skipped " << std::string(kernel.name) << ": needs " << std::string(ft::isa_name(kernel.isa))
                         << ", this CPU has " << std::string(ft::isa_name(ft::detect_isa())));
    } else {
      ++ran;
    }
  }
  MESSAGE("kernels: " << ran << " run, " << skipped << " skipped, " << ft::kernel_registry().size() << " registered");
  CHECK(ran + skipped == static_cast<int>(ft::kernel_registry().size()));
  CHECK(ran > 0);
}

TEST_SUITE("baseline") {
  TEST_CASE("each op and format has exactly one scalar kernel, and names are unique") {
    std::set<std::string_view> names;
    for (const ft::KernelDesc& kernel : ft::kernel_registry()) {
      CHECK_MESSAGE(names.insert(kernel.name).second, std::string(kernel.name));
      CHECK(kernel.name.starts_with(ft::op_name(kernel.op)));
      CHECK(reads_weights(kernel.op) == (kernel.format != ft::kNoFormat));
      if (kernel.format != ft::kNoFormat) {
        const ft::FormatInfo& info = ft::format_info(static_cast<ft::FormatId>(kernel.format));
        CHECK(kernel.name.find(dotted(info.name)) != std::string_view::npos);
      }
      if (kernel.isa != ft::Isa::kScalar) CHECK(kernel.name.ends_with(dotted(ft::isa_name(kernel.isa))));
      CHECK(std::visit([](auto fn) { return fn != nullptr; }, kernel.fn));
    }
    for (int op = 0; op < ft::kOpCount; ++op) {
      const bool weights = reads_weights(static_cast<ft::OpId>(op));
      for (int format = weights ? 0 : ft::kNoFormat; format < (weights ? ft::kFormatCount : 0); ++format) {
        int scalars = 0;
        std::set<ft::Isa> isas;
        for (const ft::KernelDesc& kernel : ft::kernel_registry()) {
          if (static_cast<int>(kernel.op) != op || kernel.format != format) continue;
          CHECK(isas.insert(kernel.isa).second);
          if (kernel.isa == ft::Isa::kScalar) ++scalars;
        }
        CAPTURE(std::string(ft::op_name(static_cast<ft::OpId>(op))));
        CAPTURE(format);
        CHECK(scalars == 1);
      }
    }
  }

  TEST_CASE("a kernel that needs a fast vdpbf16ps is passed over only where it is slow") {
    const int nvfp4 = static_cast<int>(ft::FormatId::kNvfp4);
    const auto isa_chosen = [&](ft::Isa isa, bool slow) {
      return ft::find_kernel(ft::OpId::kMatvec, nvfp4, isa, {.slow_dpbf16 = slow})->isa;
    };
    CHECK(isa_chosen(ft::Isa::kAvx512Bf16, false) == ft::Isa::kAvx512Bf16);
    CHECK(isa_chosen(ft::Isa::kAvx512Bf16, true) == ft::Isa::kAvx512);
    CHECK(isa_chosen(ft::Isa::kAvx2, true) == ft::Isa::kAvx2);
  }

  TEST_CASE("resolving a table takes the best variant at or below the ISA, for every op") {
    for (int isa = 0; isa < ft::kIsaCount; ++isa) {
      const ft::KernelTable table = ft::resolve_kernels(static_cast<ft::Isa>(isa));
      CHECK(table.isa == static_cast<ft::Isa>(isa));
      for (int format = 0; format < ft::kFormatCount; ++format) {
        const ft::KernelDesc* best = nullptr;
        for (const ft::KernelDesc& kernel : ft::kernel_registry()) {
          if (kernel.op != ft::OpId::kMatvec || kernel.format != format || kernel.isa > table.isa) continue;
          if (kernel.needs_fast_dpbf16 && ft::detect_quirks().slow_dpbf16) continue;
          if (best == nullptr || kernel.isa > best->isa) best = &kernel;
        }
        REQUIRE(best != nullptr);
        CHECK((table.matvec[format] == std::get<ft::MatvecFn>(best->fn)));
      }
    }
  }
}

}  // namespace
