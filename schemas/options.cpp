#include "schemas/options.h"

namespace ft {
namespace {

constexpr double kMaxThreadsOption = 1024;
constexpr double kMaxLinkSlowdownOption = 64;
constexpr double kMaxPrefetchesOption = 64;
constexpr double kMaxBatchOption = 64;
constexpr double kMaxSlotsOption = 4'194'304;  // experts of the largest model the engine takes: 1024 layers x 4096

constexpr OptionSpec kPackedCache = {
    .name = "--packed-cache",
    .kind = OptionKind::kText,
    .value_name = "DIR",
    .help =
        "Keeps the packed weights in DIR, made if it is not there: the first start writes one file per model, as "
        "large as its expert banks and dense matrices (--dry-run of ft-tune and ft-engine says how large), later ones "
        "read it instead of "
        "the checkpoint. A file that is damaged or of a changed checkpoint is replaced; a DIR that is there but "
        "full or not writable costs a warning, not the start. Files are never removed."};

constexpr OptionSpec kCachePolicy = {
    .name = "--cache-policy",
    .kind = OptionKind::kChoice,
    .value_name = "NAME",
    .default_text = "lrfu",
    .choices = "lru|lrfu",
    .help = "Which expert leaves the slots: the least recently used one, or the least of recency and frequency."};

constexpr OptionSpec kLookAhead = {
    .name = "--look-ahead",
    .kind = OptionKind::kInteger,
    .value_name = "N",
    .low = 0,
    .high = kMaxPrefetchesOption,
    .help =
        "Copies up to N experts ahead of need in every layer, as the next layer's router or, with synthetic "
        "weights, the trace predicts; 0, which is the default: none. Only with offload and hybrid."};

constexpr OptionSpec kTuneOptions[] = {
    {.name = "--model",
     .kind = OptionKind::kText,
     .value_name = "DIR",
     .required = true,
     .help = "Folder of a Hugging Face checkpoint: config.json, safetensors, tokenizer. With synthetic weights, "
             "config.json is enough."},
    {.name = "--output",
     .short_name = "-o",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .default_text = "profile.json",
     .help = "Where to write the profile."},
    {.name = "--device",
     .kind = OptionKind::kChoice,
     .value_name = "DEVICE",
     .default_text = "auto",
     .choices = "auto|cuda|host",
     .help = "Device that serves: auto takes the GPU when there is one, host is CPU and memory only."},
    {.name = "--budget",
     .kind = OptionKind::kNumber,
     .value_name = "SECONDS",
     .default_text = "120",
     .low = 1,
     .high = kMaxBudgetSeconds,
     .help = "Time for measuring, loading not counted. Probes that a small budget shortens are marked reduced."},
    {.name = "--vram-limit",
     .kind = OptionKind::kBytes,
     .value_name = "BYTES",
     .low = kMinMemoryLimitBytes,
     .high = kMaxMemoryLimitBytes,
     .help =
         "Device memory to use at most: makes a large GPU behave like a small one. On the host device it bounds the "
         "memory that plays the device's."},
    {.name = "--host-memory",
     .kind = OptionKind::kBytes,
     .value_name = "BYTES",
     .low = kMinMemoryLimitBytes,
     .high = kMaxMemoryLimitBytes,
     .help = "Host memory to use at most. Without it: what is available within the cgroup's limit."},
    {.name = "--context",
     .kind = OptionKind::kIntegers,
     .value_name = "N,..",
     .low = 1,
     .high = kMaxListedContext,
     .help = "Context lengths to tune for, in tokens; the largest is what the engine will serve. Without it: chosen "
             "from the model's own limit."},
    {.name = "--batch",
     .kind = OptionKind::kIntegers,
     .value_name = "N,..",
     .low = 1,
     .high = kMaxBatchOption,
     .help = "Numbers of sequences decoded together to tune for. Without it: 1 and a small batch."},
    {.name = "--strategy",
     .kind = OptionKind::kChoice,
     .value_name = "NAME",
     .choices = "resident|offload|cpu|hybrid",
     .help = "Pins the strategy; the profile then says that it was forced."},
    {.name = "--slots",
     .kind = OptionKind::kCountOrPercent,
     .value_name = "N|P%",
     .low = 0,
     .high = kMaxSlotsOption,
     .help = "Pins the cache size: experts over all layers together, or a share of them. With resident only 100%."},
    {.name = "--threads",
     .kind = OptionKind::kInteger,
     .value_name = "N",
     .low = 1,
     .high = kMaxThreadsOption,
     .help = "Pins the compute threads, the calling one included; at most the usable cores."},
    kCachePolicy,
    kLookAhead,
    {.name = "--link-slowdown",
     .kind = OptionKind::kInteger,
     .value_name = "K",
     .low = 1,
     .high = kMaxLinkSlowdownOption,
     .help = "Tests only, device cuda: every expert crosses the link K times, as over a link K times as slow. The "
             "profile says so and the engine does the same."},
    {.name = "--weights",
     .kind = OptionKind::kWeights,
     .value_name = "SOURCE",
     .default_text = "checkpoint",
     .help =
         "checkpoint, or synthetic[:SEED]: seeded weights made in place from config.json alone, to try a model before "
         "downloading it."},
    {.name = "--routing",
     .kind = OptionKind::kText,
     .value_name = "PRESET|FILE",
     .help = "Expert choices used with synthetic weights: a preset of the calibrated generator or a recorded trace. "
             "PRESET+lookahead:P/R also predicts the next layer's experts, with precision P and recall R."},
    kPackedCache,
    {.name = "--record",
     .kind = OptionKind::kText,
     .value_name = "DIR",
     .help = "Also writes a recording of the machine: samples, routing, inputs and the decision that follows from them "
             "anywhere, at most 300 kB. DIR is made, may be empty or hold an older recording, and nothing else."},
    {.name = "--resume",
     .kind = OptionKind::kFlag,
     .help = "Uses the samples that an interrupted run left beside the output file."},
    {.name = "--dry-run",
     .kind = OptionKind::kFlag,
     .help = "Prints the memory plan, the probes and the candidates, and measures nothing."},
    {.name = "--log-level",
     .kind = OptionKind::kChoice,
     .value_name = "LEVEL",
     .default_text = "info",
     .choices = "debug|info|warning|error",
     .help = "Least severe messages that are shown on stderr."},
};

constexpr OptionSpec kEngineOptions[] = {
    {.name = "--profile",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .help = "Profile to serve, written by ft-tune. Needed; without it the engine prints the ft-tune command to run."},
    {.name = "--model",
     .kind = OptionKind::kText,
     .value_name = "DIR",
     .help = "Checkpoint folder, in place of the path that the profile recorded. Its hashes must match either way."},
    {.name = "--weights",
     .kind = OptionKind::kWeights,
     .value_name = "SOURCE",
     .help = "checkpoint or synthetic[:SEED], in place of what the profile was tuned with."},
    {.name = "--routing",
     .kind = OptionKind::kText,
     .value_name = "PRESET|FILE",
     .help = "Expert choices used with synthetic weights, in place of the profile's."},
    kPackedCache,
    {.name = "--host",
     .kind = OptionKind::kText,
     .value_name = "ADDRESS",
     .default_text = "127.0.0.1",
     .help = "Address to listen on."},
    {.name = "--port",
     .kind = OptionKind::kInteger,
     .value_name = "N",
     .default_text = "8080",
     .low = 1,
     .high = 65535,
     .help = "Port to listen on."},
    {.name = "--prompt",
     .kind = OptionKind::kText,
     .value_name = "TEXT",
     .help = "Answers this prompt on stdout and exits, instead of serving."},
    {.name = "--max-tokens",
     .kind = OptionKind::kInteger,
     .value_name = "N",
     .default_text = "128",
     .low = 1,
     .high = kMaxListedContext,
     .help = "Longest answer to --prompt, in tokens."},
    {.name = "--dry-run",
     .kind = OptionKind::kFlag,
     .help = "Checks all that a start would refuse but the port, prints the memory plan and exits."},
    {.name = "--accept-mismatch",
     .kind = OptionKind::kTexts,
     .value_name = "FIELD,..",
     .help = "Identity fields that may differ from the profile's, as named by the refusal: host.cpu_model, "
             "build.code_hash, .."},
    {.name = "--on-drift",
     .kind = OptionKind::kChoice,
     .value_name = "WHAT",
     .default_text = "warn",
     .choices = "warn|fallback",
     .help =
         "When the rate leaves the band that the profile expects: warn says so and which term moved; fallback also "
         "goes over to the profile's offload entry between two steps, until the next start. Answers stay the same."},
    {.name = "--score",
     .kind = OptionKind::kText,
     .value_name = "IN.json",
     .help = "Writes the logits of given ids instead of serving; needs --output. For checks and perplexity."},
    {.name = "--output",
     .short_name = "-o",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .help = "Where --score writes its safetensors file."},
    {.name = "--numerics",
     .kind = OptionKind::kChoice,
     .value_name = "MODE",
     .default_text = "serve",
     .choices = "serve|reference",
     .help = "Arithmetic of --score: as served, or fp32 activations (host only) for comparison with other "
             "implementations."},
    {.name = "--deepseek-arithmetic",
     .kind = OptionKind::kChoice,
     .value_name = "WHOSE",
     .choices = "authors|transformers",
     .help = "DeepSeek-V4 with attention's rows on the grid of FP8 and index vectors on that of FP4, as the authors' "
             "inference has them, or without, as in transformers. Without this option: authors as served, transformers "
             "with --numerics reference."},
    {.name = "--no-wait",
     .kind = OptionKind::kFlag,
     .help = "Device cuda only: computes the CPU's experts between launches instead of beside them, so that no kernel "
             "waits for the host. Slow; for compute-sanitizer and profilers."},
    {.name = "--host-memory",
     .kind = OptionKind::kBytes,
     .value_name = "BYTES",
     .low = kMinMemoryLimitBytes,
     .high = kMaxMemoryLimitBytes,
     .help = "Host memory to use at most. Without it: what is available within the cgroup's limit."},
    {.name = "--log-level",
     .kind = OptionKind::kChoice,
     .value_name = "LEVEL",
     .default_text = "info",
     .choices = "debug|info|warning|error",
     .help = "Least severe messages that are shown on stderr."},
};

constexpr OptionSpec kProbeOptions[] = {
    {.name = "--model",
     .kind = OptionKind::kText,
     .value_name = "DIR",
     .help = "Checkpoint folder. Without it only the probes that need no model run."},
    {.name = "--weights",
     .kind = OptionKind::kWeights,
     .value_name = "SOURCE",
     .default_text = "checkpoint",
     .help = "checkpoint, or synthetic[:SEED]: seeded weights made in place from config.json alone."},
    {.name = "--routing",
     .kind = OptionKind::kText,
     .value_name = "PRESET|FILE",
     .help = "Expert choices used with synthetic weights: a preset of the calibrated generator or a recorded trace. "
             "PRESET+lookahead:P/R also predicts, with precision P and recall R. Without it qwen3-30b."},
    kPackedCache,
    {.name = "--expert",
     .kind = OptionKind::kTexts,
     .value_name = "FORMAT:HxI,..",
     .help = "Other expert geometries for expert_single, format and hidden by intermediate size: nvfp4:2560x640."},
    {.name = "--probe", .kind = OptionKind::kTexts, .value_name = "ID,..", .help = "Runs these probes only."},
    {.name = "--device",
     .kind = OptionKind::kChoice,
     .value_name = "DEVICE",
     .default_text = "auto",
     .choices = "auto|cuda|host",
     .help = "Device of the engine that the probes time: auto takes the GPU when there is one."},
    {.name = "--vram-limit",
     .kind = OptionKind::kBytes,
     .value_name = "BYTES",
     .low = kMinMemoryLimitBytes,
     .high = kMaxMemoryLimitBytes,
     .help = "Device memory to use at most."},
    kCachePolicy,
    kLookAhead,
    {.name = "--link-slowdown",
     .kind = OptionKind::kInteger,
     .value_name = "K",
     .low = 1,
     .high = kMaxLinkSlowdownOption,
     .help = "Tests only, device cuda: every expert crosses the link K times."},
    {.name = "--bank-gb",
     .kind = OptionKind::kNumber,
     .value_name = "GB",
     .low = 0.001,
     .high = 1e6,
     .help = "Size of the memory that `bank` makes ready. Without it: 48, or half of what is available."},
    {.name = "--threads",
     .kind = OptionKind::kIntegers,
     .value_name = "N,..",
     .low = 1,
     .high = kMaxThreadsOption,
     .help = "Compute threads to sweep. Without it: 1 and all usable cores."},
    {.name = "--context",
     .kind = OptionKind::kIntegers,
     .value_name = "N,..",
     .default_text = "128",
     .low = 1,
     .high = kMaxListedContext,
     .help = "Positions for dense and decode."},
    {.name = "--batch",
     .kind = OptionKind::kIntegers,
     .value_name = "N,..",
     .default_text = "1",
     .low = 1,
     .high = kMaxBatchOption,
     .help = "Sequences decoded together."},
    {.name = "--budget",
     .kind = OptionKind::kNumber,
     .value_name = "SECONDS",
     .default_text = "5",
     .low = 1,
     .high = kMaxBudgetSeconds,
     .help = "Time for each probe."},
};

}  // namespace

constinit const ProgramSpec kTuneProgram = {
    .name = "ft-tune",
    .summary =
        "Measures this machine with a model's real geometry, chooses how to serve its experts, writes a profile.",
    .examples =
        "  ft-tune --model ~/models/Qwen3-30B-A3B -o profile.json\n"
        "  ft-tune --model ~/models/Qwen3-30B-A3B --vram-limit 16GiB --context 4096,32768 --batch 1,8\n"
        "  ft-tune --model config-only/ --weights synthetic:7 --routing qwen3-30b --budget 30\n"
        "  ft-tune --model ~/models/Qwen3-30B-A3B --device host --strategy hybrid --slots 25%\n",
    .options = kTuneOptions,
};

constinit const ProgramSpec kEngineProgram = {
    .name = "ft-engine",
    .summary = "Serves a mixture-of-experts model over HTTP exactly as its profile says.",
    .examples =
        "  ft-engine --profile profile.json\n"
        "  ft-engine --profile profile.json --host 0.0.0.0 --port 8000\n"
        "  ft-engine --profile profile.json --prompt 'In the beginning' --max-tokens 32\n"
        "  ft-engine --profile profile.json --score ids.json --output logits.safetensors\n",
    .options = kEngineOptions,
};

constinit const ProgramSpec kProbeProgram = {
    .name = "ft-probe",
    .summary =
        "Runs ft-tune's measurements by hand, reports through Google Benchmark, takes its --benchmark_* options.",
    .examples =
        "  ft-probe --budget 2\n"
        "  ft-probe --model ~/models/Qwen3-30B-A3B --probe expert_single,layer_sweep --threads 1,8\n"
        "  ft-probe --expert nvfp4:2560x640 --probe expert_single\n"
        "  ft-probe --probe stream,expert_single --expert bf16:2048x768 --batch 1,8\n",
    .options = kProbeOptions,
};

}  // namespace ft
