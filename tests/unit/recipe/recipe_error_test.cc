// What a recipe that is wrong makes the user read: file, line, key, and what works.
#include <troika/base/error.h>

#include <gmock/gmock.h>
#include <ostream>

#include "recipe_text.h"

namespace troika::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Mistake {
  std::string from;  // replaced in kGptRecipe
  std::string to;
  std::string message;  // all of it
};

// The name of a test in failures.
void PrintTo(const Mistake& mistake, std::ostream* stream) {
  *stream << mistake.message;
}

// What is to be written instead; empty where nothing is wrong.
std::string hint_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    (void)read(text, overrides);
  } catch (const UsageError& error) {
    return error.hint();
  }
  return "";
}

class OneMistake : public ::testing::TestWithParam<Mistake> {};

TEST_P(OneMistake, IsNamed) {
  const Mistake& mistake = GetParam();
  EXPECT_EQ(error_of(with(kGptRecipe, mistake.from, mistake.to)), mistake.message);
}

INSTANTIATE_TEST_SUITE_P(
    Keys, OneMistake,
    ::testing::Values(
        Mistake{"layers", "layer",
                "recipe.toml:5: [model] unknown key 'layer'; did you mean 'layers'?"},
        Mistake{"name", "nmae", "recipe.toml:1: unknown key 'nmae'; did you mean 'name'?"},
        Mistake{"steps", "lr",
                "recipe.toml:17: [train] unknown key 'lr'; did you mean 'optimizer.lr'?"},
        Mistake{"[train]\nsteps = 10", "[parallel]\nschedule = \"1f1b\"",
                "recipe.toml:17: [parallel] unknown key 'schedule'; did you mean "
                "'pipeline_schedule'?"},
        Mistake{"steps", "zzzz", "recipe.toml:17: [train] unknown key 'zzzz'"},
        Mistake{"steps", "\"a\\nb\"", "recipe.toml:17: [train] unknown key 'a\\nb'"},
        Mistake{"[train]", "[trian]",
                "recipe.toml:16: unknown section [trian]; did you mean [train]?"},
        Mistake{"[train]", "[[train]]",
                "recipe.toml:16: 'train' is a section: expected a table, found a list of 1"},
        Mistake{"layers = 2", "layers = 2\ninput_dim = 5",
                "recipe.toml:6: [model] 'input_dim' is a key of kind = \"mlp\", not of kind = "
                "\"gpt\""},
        Mistake{"name = \"test\"\n", "", "recipe.toml: missing required key 'name'"},
        Mistake{"kind = \"gpt\"\n", "", "recipe.toml: [model] missing required key 'kind'"},
        Mistake{"layers = 2\n", "", "recipe.toml: [model] missing required key 'layers'"},
        Mistake{"dim = 64\n", "", "recipe.toml: [model] missing required key 'dim'"},
        Mistake{"heads = 4\n", "", "recipe.toml: [model] missing required key 'heads'"},
        Mistake{"ffn_dim = 128\n", "", "recipe.toml: [model] missing required key 'ffn_dim'"},
        Mistake{"vocab_size = 256\n", "", "recipe.toml: [model] missing required key 'vocab_size'"},
        Mistake{"seq_len = 32\n", "", "recipe.toml: [model] missing required key 'seq_len'"},
        Mistake{"kind = \"text\"\n", "", "recipe.toml: [data] missing required key 'kind'"}));

INSTANTIATE_TEST_SUITE_P(
    Types, OneMistake,
    ::testing::Values(
        Mistake{"layers = 2", "layers = \"six\"",
                "recipe.toml:5: [model] layers: expected integer, found string \"six\""},
        Mistake{"layers = 2", "layers = 2.0",
                "recipe.toml:5: [model] layers: expected integer, found number 2.0"},
        Mistake{"layers = 2", "layers = true",
                "recipe.toml:5: [model] layers: expected integer, found boolean true"},
        Mistake{"layers = 2", "layers = [2]",
                "recipe.toml:5: [model] layers: expected integer, found a list of 1"},
        Mistake{"layers = 2", "layers = {a = 1}",
                "recipe.toml:5: [model] layers: expected integer, found a table"},
        Mistake{"layers = 2", "layers.a.b = 1",
                "recipe.toml:5: [model] layers: expected integer, found a table"},
        Mistake{"layers = 2", "layers = 2026-11-20",
                "recipe.toml:5: [model] layers: expected integer, found a date"},
        Mistake{"name = \"test\"", "name = 5",
                "recipe.toml:1: name: expected string, found integer 5"},
        Mistake{"kind = \"gpt\"", "kind = 1",
                "recipe.toml:4: [model] kind: expected string, found integer 1"},
        Mistake{"[\"a/*.txt\"]", "\"a\"",
                "recipe.toml:14: [data] paths: expected list of strings, found string \"a\""},
        Mistake{"[\"a/*.txt\"]", "[\"a\", 5]",
                "recipe.toml:14: [data] paths: expected list of strings, found integer 5 at "
                "position 2"},
        Mistake{"steps = 10", "grad_clip = 'x'",
                "recipe.toml:17: [train] grad_clip: expected number, found string \"x\""},
        Mistake{"steps = 10", "deterministic = 1",
                "recipe.toml:17: [train] deterministic: expected boolean, found integer 1"},
        Mistake{"[train]\nsteps = 10", "[parallel]\ndata = \"many\"",
                "recipe.toml:17: [parallel] data: expected integer or \"auto\", found string "
                "\"many\""},
        Mistake{"[train]\nsteps = 10", "[optimizer]\nbetas = [0.9]",
                "recipe.toml:17: [optimizer] betas: expected list of two numbers, found a list of "
                "1"}));

INSTANTIATE_TEST_SUITE_P(
    Ranges, OneMistake,
    ::testing::Values(
        Mistake{"layers = 2", "layers = 0",
                "recipe.toml:5: [model] layers: 0 is out of range: 1 to 10000000"},
        Mistake{"steps = 10", "steps = -1",
                "recipe.toml:17: [train] steps: -1 is out of range: 1 to 1000000000"},
        Mistake{"steps = 10", "micro_batch_size = 0",
                "recipe.toml:17: [train] micro_batch_size: 0 is out of range: 1 to 1000000000"},
        Mistake{"steps = 10", "grad_clip = nan",
                "recipe.toml:17: [train] grad_clip: expected a finite number, found nan"},
        Mistake{"steps = 10", "grad_clip = -inf",
                "recipe.toml:17: [train] grad_clip: expected a finite number, found -inf"},
        Mistake{"steps = 10", "grad_clip = -0.5",
                "recipe.toml:17: [train] grad_clip: -0.5 is out of range: 0 or more"},
        Mistake{"layers = 2", "layers = 2\ndropout = 1.0",
                "recipe.toml:6: [model] dropout: 1.0 is out of range: [0, 1)"},
        Mistake{"layers = 2", "layers = 2\nrope_theta = 0",
                "recipe.toml:6: [model] rope_theta: 0.0 is out of range: more than 0"},
        Mistake{"layers = 2", "layers = 2\nnorm_eps = 0",
                "recipe.toml:6: [model] norm_eps: 0.0 is out of range: more than 0"},
        Mistake{"[train]\nsteps = 10", "[optimizer]\neps = 0",
                "recipe.toml:17: [optimizer] eps: 0.0 is out of range: more than 0"},
        Mistake{"paths", "held_out_fraction = 1\npaths",
                "recipe.toml:14: [data] held_out_fraction: 1.0 is out of range: [0, 1)"},
        Mistake{"[train]\nsteps = 10", "[optimizer]\nbetas = [0.9, 1]",
                "recipe.toml:17: [optimizer] betas: 1.0 is out of range: [0, 1)"},
        Mistake{"[train]\nsteps = 10", "[observe]\nprometheus_port = 65536",
                "recipe.toml:17: [observe] prometheus_port: 65536 is out of range: 0 to 65535"},
        Mistake{"[train]\nsteps = 10", "[comm]\ntimeout_seconds = 0",
                "recipe.toml:17: [comm] timeout_seconds: 0.0 is out of range: (0, 10000000]"},
        Mistake{"[train]\nsteps = 10", "[debug]\ndump_steps = [1, 0]",
                "recipe.toml:17: [debug] dump_steps: 0 is out of range: 1 or more"},
        Mistake{"[train]\nsteps = 10", "[parallel]\nzero_stage = 4",
                "recipe.toml:17: [parallel] zero_stage: 4 is out of range: 0 to 3"}));

INSTANTIATE_TEST_SUITE_P(
    Choices, OneMistake,
    ::testing::Values(
        Mistake{"kind = \"gpt\"", "kind = \"gtp\"",
                "recipe.toml:4: [model] kind: 'gtp' is not one of gpt, mlp, resnet, torchscript, "
                "exported, "
                "plugin; did you mean "
                "'gpt'?"},
        Mistake{"layers = 2", "layers = 2\nnorm = \"layer_norm\"",
                "recipe.toml:6: [model] norm: 'layer_norm' is not one of rmsnorm, layernorm; did "
                "you mean 'layernorm'?"},
        Mistake{"layers = 2", "layers = 2\nactivation = \"relu\"",
                "recipe.toml:6: [model] activation: 'relu' is not one of swiglu, gelu, gelu_tanh; "
                "did you mean 'gelu'?"},
        Mistake{"steps = 10", "precision = \"int4\"",
                "recipe.toml:17: [train] precision: 'int4' is not one of auto, fp64, fp32, bf16, "
                "fp16"}));

INSTANTIATE_TEST_SUITE_P(
    Together, OneMistake,
    ::testing::Values(
        Mistake{"dim = 64", "dim = 66",
                "recipe.toml:6: [model] dim = 66 is not a multiple of heads = 4"},
        Mistake{"heads = 4", "heads = 4\nkv_heads = 3",
                "recipe.toml:8: [model] kv_heads = 3 does not divide heads = 4; the nearest below "
                "that does is 2"},
        Mistake{"heads = 4", "heads = 4\nkv_heads = 8",
                "recipe.toml:8: [model] kv_heads = 8 does not divide heads = 4; the nearest below "
                "that does is 4"},
        Mistake{"layers = 2", "layers = 2\nrope_scaling = \"linear\"\nposition = \"learned\"",
                "recipe.toml:6: [model] rope_scaling = \"linear\" is of rotary positions, and "
                "position = \"learned\""},
        Mistake{"layers = 2", "layers = 2\nrope_scaling = \"llama3\"\nrope_high_freq_factor = 1",
                "recipe.toml:7: [model] rope_scaling = \"llama3\" needs rope_low_freq_factor below "
                "rope_high_freq_factor"},
        Mistake{"heads = 4", "heads = 4\nhead_dim = 5",
                "recipe.toml:8: [model] head_dim = 5 is odd; position = \"rope\" turns pairs and "
                "needs an even one"},
        Mistake{
            "vocab_size = 256", "vocab_size = 255",
            "recipe.toml:9: [model] vocab_size = 255 is too small for tokenizer = \"bytes\"; at "
            "least 256"},
        Mistake{"paths", "weights = [1, 2]\npaths",
                "recipe.toml:14: [data] weights has 2 numbers for 1 paths; one for each, or none"},
        Mistake{"[train]\nsteps = 10", "[observe]\ntrace_steps = [3]",
                "recipe.toml:17: [observe] trace_steps: expected [first, last] with first <= last, "
                "or []"},
        Mistake{"[train]\nsteps = 10", "[observe]\ntrace_steps = [3, 2]",
                "recipe.toml:17: [observe] trace_steps: expected [first, last] with first <= last, "
                "or []"},
        Mistake{"[train]\nsteps = 10", "[optimizer]\nkind = \"sgd\"\nnesterov = true",
                "recipe.toml:18: [optimizer] nesterov = true needs momentum; write momentum = 0.9, "
                "or nesterov = false"},
        Mistake{
            "steps = 10", "steps = 1000000000\nglobal_batch_size = 1000000000",
            "recipe.toml:17: [train] steps x global_batch_size x seq_len is 3.2e+19 tokens; the "
            "counter ends at 9e18"},
        Mistake{"[train]\nsteps = 10", "[train]\nglobal_batch_size = 2\n[parallel]\ndata = 3",
                "recipe.toml:17: [train] global_batch_size = 2 is smaller than the data axis of 3 "
                "ranks; the nearest that works is 3"}));

INSTANTIATE_TEST_SUITE_P(
    Text, OneMistake,
    ::testing::Values(
        Mistake{"\"test\"", "\"a/b\"", "recipe.toml:1: name: 'a/b' cannot name a folder"},
        Mistake{"\"test\"", "\"..\"", "recipe.toml:1: name: '..' cannot name a folder"},
        Mistake{"\"test\"", "\"\"", "recipe.toml:1: name: must not be empty"},
        Mistake{"\"test\"", "\"a\\u0000b\"", "recipe.toml:1: name: contains a NUL character"},
        Mistake{"\"a/*.txt\"", "\"a\", \"\"", "recipe.toml:14: [data] paths: must not be empty"}));

INSTANTIATE_TEST_SUITE_P(
    NotYet, OneMistake,
    ::testing::Values(
        Mistake{"[train]\nsteps = 10", "[parallel]\ncontext = 2",
                "recipe.toml:17: [parallel] context = 2: context parallelism does not exist yet; "
                "write context = 1"},
        Mistake{"[train]\nsteps = 10",
                "[train]\nsteps = 10\ndevice = \"cpu\"\n[comm]\nengine = \"nccl\"",
                "recipe.toml:20: [comm] engine = \"nccl\": it carries tensors of GPUs, and "
                "train.device is \"cpu\"; write "
                "engine = \"auto\""},
        Mistake{"steps = 10", "deterministic = true\ncudnn_benchmark = true",
                "recipe.toml:18: [train] cudnn_benchmark = true: the fastest algorithm may be "
                "another one in each run, and deterministic = true; write cudnn_benchmark = false"},
        Mistake{"[train]\nsteps = 10", "[comm]\nengine = \"fake\"",
                "recipe.toml:17: [comm] engine = \"fake\": it exchanges nothing, and is for troika "
                "train --dry-run; write engine = \"auto\""}));

INSTANTIATE_TEST_SUITE_P(
    Splits, OneMistake,
    ::testing::Values(
        Mistake{"[train]\nsteps = 10", "[parallel]\ntensor = 5",
                "recipe.toml:17: [parallel] tensor = 5: the model has 4 heads, and each rank needs "
                "one"},
        Mistake{"[train]\nsteps = 10", "[parallel]\npipeline = 3",
                "recipe.toml:17: [parallel] pipeline = 3 with 1 virtual stage a rank makes 3 "
                "stages, and the "
                "model has 2 layers"},
        Mistake{"[train]\nsteps = 10", "[parallel]\npipeline = 2\nvirtual_stages = 2",
                "recipe.toml:18: [parallel] virtual_stages = 2: pipeline_schedule = \"1f1b\" has 1 "
                "virtual stage a rank"},
        Mistake{"[train]\nsteps = 10", "[parallel]\npipeline = 2\npipeline_schedule = \"zb-v\"",
                "recipe.toml:17: [parallel] pipeline = 2 with 2 virtual stages a rank makes 4 "
                "stages, and the "
                "model has 2 layers"},
        Mistake{"[train]\nsteps = 10", "[parallel]\npipeline = 2\nstage_units = [1, 2]",
                "recipe.toml:18: [parallel] stage_units: expected 2 numbers that add up to 4 units "
                "(embedding, layers, head)"},
        Mistake{"[train]\nsteps = 10", "[parallel]\nstage_units = [9, 9, 9]",
                "recipe.toml:17: [parallel] stage_units: expected numbers that add up to 4 units "
                "(embedding, layers, head)"},
        Mistake{"[train]\nsteps = 10", "[parallel]\ndata = 4\nshard = 3",
                "recipe.toml:18: [parallel] shard = 3 does not divide the data axis of 4 ranks"}));

TEST(RecipeErrors, AnAxisOfOneAcceptsEverySetting) {
  EXPECT_EQ(error_of(kGptRecipe, {"parallel.pipeline_schedule=zb-v", "parallel.virtual_stages=7",
                                  "parallel.stage_units=[1, 2, 1]", "parallel.data=1",
                                  "parallel.zero_stage=3", "parallel.shard=2"}),
            "");
}

TEST(RecipeErrors, EnginesThatExistAreAccepted) {
  for (const std::string engine : {"auto", "shm", "gloo", "mpi"}) {
    EXPECT_EQ(error_of(kGptRecipe, {"comm.engine=" + engine}), "");
  }
}

TEST(RecipeErrors, TomlSyntaxNamesTheLine) {
  EXPECT_THAT(error_of(with(kGptRecipe, "layers = 2", "layers = two")),
              StartsWith("recipe.toml:5: not valid TOML: "));
  EXPECT_THAT(error_of(with(kGptRecipe, "\"gpt\"", "\"gpt")),
              StartsWith("recipe.toml:4: not valid TOML: "));
  EXPECT_THAT(error_of(with(kGptRecipe, "layers = 2", "layers = 2\nlayers = 3")),
              StartsWith("recipe.toml:6: not valid TOML: "));
  EXPECT_THAT(error_of(with(kGptRecipe, "seq_len = 32", "seq_len = 9999999999999999999999")),
              StartsWith("recipe.toml:10: not valid TOML: "));
  EXPECT_THAT(error_of("train = 5\n" + kGptRecipe), StartsWith("recipe.toml:17: not valid TOML: "));
  EXPECT_THAT(error_of(with(kGptRecipe, "\"test\"", "\"\xff\"")),
              StartsWith("recipe.toml:1: not valid TOML: "));
}

TEST(RecipeErrors, MessagesAreOneLine) {
  for (const std::string& text :
       {std::string("a = \"\n"), std::string("\x01\n"), std::string("\"a\\u000Ab\" = 1\n"),
        std::string("[\"x\\ny\"]\n"), std::string("name = \"a\\nb\"\n") + kGptRecipe.substr(14)}) {
    const std::string message = error_of(text);
    EXPECT_NE(message, "");
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(RecipeErrors, AnMlpIsNoLanguageModel) {
  EXPECT_EQ(error_of(with(kMlpRecipe, "\"random\"", "\"text\"\npaths = [\"a\"]")),
            "recipe.toml:8: [data] kind = \"text\" needs a language model, and [model] kind is "
            "\"mlp\"; write kind = \"random\", or choose a language model");
  EXPECT_EQ(error_of(with(kMlpRecipe, "input_dim = 8", "layers = 8")),
            "recipe.toml:4: [model] 'layers' is a key of kind = \"gpt\", not of kind = \"mlp\"");
  EXPECT_EQ(error_of(with(kMlpRecipe, "hidden_dims = [16, 16]\n", "")),
            "recipe.toml: [model] missing required key 'hidden_dims'");
  EXPECT_EQ(error_of(with(kMlpRecipe, "[16, 16]", "[16, 0]")),
            "recipe.toml:5: [model] hidden_dims: 0 is out of range: 1 to 10000000");
  EXPECT_EQ(error_of(kMlpRecipe, {"model.activation=swiglu"}),
            "--set model.activation=swiglu: [model] activation: 'swiglu' is not one of gelu, relu, "
            "tanh");
}

TEST(RecipeErrors, AnMlpHasNoAttentionToRunAgain) {
  const std::string key = "parallel.activation_checkpoint=";
  EXPECT_EQ(error_of(kMlpRecipe, {key + "selective"}),
            "--set parallel.activation_checkpoint=selective: [parallel] activation_checkpoint = "
            "\"selective\": a model of kind = \"mlp\" has no attention to run again");
  EXPECT_EQ(hint_of(kMlpRecipe, {key + "selective"}),
            "write activation_checkpoint = \"full\" or \"none\"");
  for (const std::string kind : {"full", "none"}) {
    EXPECT_EQ(error_of(kMlpRecipe, {key + kind}), "") << kind;
  }
  EXPECT_EQ(error_of(kGptRecipe, {key + "selective"}), "");
}

TEST(RecipeErrors, OverridesAreTheirOwnSource) {
  EXPECT_EQ(error_of(kGptRecipe, {"model.layer=3"}),
            "--set model.layer=3: unknown key 'model.layer'; did you mean 'model.layers'?");
  EXPECT_EQ(error_of(kGptRecipe, {"layers=3"}),
            "--set layers=3: unknown key 'layers'; did you mean 'model.layers'?");
  EXPECT_EQ(error_of(kGptRecipe, {"modle.layers=3"}),
            "--set modle.layers=3: unknown key 'modle.layers'; did you mean 'model.layers'?");
  EXPECT_EQ(error_of(kGptRecipe, {"parallel.zero=3"}),
            "--set parallel.zero=3: unknown key 'parallel.zero'; did you mean "
            "'parallel.zero_stage'?");
  EXPECT_EQ(error_of(kGptRecipe, {"model=3"}),
            "--set model=3: 'model' is a section: expected a table, found integer 3");
  EXPECT_EQ(error_of(kGptRecipe, {"model.layers=six"}),
            "--set model.layers=six: [model] layers: expected integer, found string \"six\"");
  EXPECT_EQ(error_of(kGptRecipe, {"model.layers=0"}),
            "--set model.layers=0: [model] layers: 0 is out of range: 1 to 10000000");
  EXPECT_EQ(
      error_of(kGptRecipe, {"model.norm=batchnorm"}),
      "--set model.norm=batchnorm: [model] norm: 'batchnorm' is not one of rmsnorm, layernorm");
  EXPECT_EQ(error_of(kGptRecipe, {"model.layers"}), "--set model.layers: expected KEY=VALUE");
  EXPECT_EQ(error_of(kGptRecipe, {"=3"}), "--set =3: expected KEY=VALUE");
  EXPECT_EQ(error_of(kGptRecipe, {"provenance.x=3"}),
            "--set provenance.x=3: unknown key 'provenance.x'");
  EXPECT_THAT(error_of(kGptRecipe, {"name=\xff"}), HasSubstr("not UTF-8"));
}

TEST(RecipeErrors, AMistakeBetweenTwoKeysNamesTheOneThatWasWritten) {
  EXPECT_EQ(error_of(kGptRecipe, {"model.heads=5"}),
            "recipe.toml:6: [model] dim = 64 is not a multiple of heads = 5");
  EXPECT_EQ(error_of(kGptRecipe, {"model.heads=64"}),
            "recipe.toml:6: [model] head_dim = 1 is odd; position = \"rope\" turns pairs and needs "
            "an even one");
  EXPECT_EQ(
      error_of(kGptRecipe + "[parallel]\ndata = 65\n"),
      "recipe.toml: [train] global_batch_size = 64 is smaller than the data axis of 65 ranks; "
      "the nearest that works is 65");
}

TEST(RecipeErrors, HintsSayWhatToWrite) {
  try {
    (void)read(with(kGptRecipe, "dim = 64", "dim = 66"));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.hint(), "write dim = 64 or 68, or give head_dim");
  }
}

// What a hint says works.
TEST(RecipeErrors, TooManyStagesNameTheNearestThatFit) {
  const auto hint_for = [](int layers, const std::vector<std::string>& parallel) {
    std::vector<std::string> overrides = {"model.layers=" + std::to_string(layers)};
    for (const std::string& one : parallel) overrides.push_back("parallel." + one);
    return hint_of(kGptRecipe, overrides);
  };
  const std::string zb_v = "pipeline_schedule=zb-v";
  EXPECT_EQ(hint_for(3, {"pipeline=2", zb_v}),
            "write pipeline_schedule = \"zb-h1\", or more layers");
  EXPECT_EQ(hint_for(3, {"pipeline=2", "pipeline_schedule=zb-h1"}), "");
  EXPECT_EQ(hint_for(3, {"pipeline=2", zb_v, "virtual_stages=2"}),
            "write pipeline_schedule = \"zb-h1\" and virtual_stages = 1, or more layers");
  EXPECT_EQ(hint_for(3, {"pipeline=4", zb_v}),
            "write pipeline = 3 and pipeline_schedule = \"zb-h1\", or more layers");
  EXPECT_EQ(hint_for(3, {"pipeline=3", "pipeline_schedule=zb-h1"}), "");
  for (const std::string schedule : {"gpipe", "interleaved-1f1b"}) {
    const std::string named = "pipeline_schedule=" + schedule;
    EXPECT_EQ(hint_for(4, {"pipeline=2", named, "virtual_stages=4"}),
              "write virtual_stages = 2, or more layers");
    EXPECT_EQ(hint_for(4, {"pipeline=2", named, "virtual_stages=2"}), "");
    EXPECT_EQ(hint_for(4, {"pipeline=5", named, "virtual_stages=2"}),
              "write pipeline = 4 and virtual_stages = 1, or more layers");
    EXPECT_EQ(hint_for(4, {"pipeline=4", named}), "");
  }
  EXPECT_EQ(hint_for(3, {"pipeline=4"}), "write pipeline = 3 or less, or more layers");
  EXPECT_EQ(hint_for(1, {"pipeline=2"}), "write pipeline = 1, or more layers");
  EXPECT_EQ(hint_for(1, {"pipeline=2", zb_v}), "write pipeline = 1, or more layers");
  EXPECT_EQ(hint_for(4, {"pipeline=4", zb_v, "stage_units=[1, 1, 1, 1, 1, 1, 1, 1]"}),
            "write pipeline_schedule = \"zb-h1\" and stage_units = [], or more layers");
  EXPECT_EQ(hint_of(kMlpRecipe, {"parallel.pipeline=4"}),
            "write pipeline = 3 or less, or more hidden_dims");
}

TEST(RecipeErrors, OtherSchedulesAreNamedWhereThereAreLayersForTheirStages) {
  const auto hint_for = [](int layers, const std::string& schedule, int virtual_stages) {
    return hint_of(kGptRecipe, {"model.layers=" + std::to_string(layers), "parallel.pipeline=4",
                                "parallel.pipeline_schedule=" + schedule,
                                "parallel.virtual_stages=" + std::to_string(virtual_stages)});
  };
  const std::string interleaved = "write pipeline_schedule = \"interleaved-1f1b\"";
  EXPECT_EQ(hint_for(8, "1f1b", 2), interleaved + ", or virtual_stages = 1");
  EXPECT_EQ(hint_for(8, "zb-h1", 2), interleaved + " or \"zb-v\", or virtual_stages = 1");
  EXPECT_EQ(hint_for(12, "zb-h2", 3), interleaved + ", or virtual_stages = 1");
  for (const std::string single_stage_schedule : {"1f1b", "zb-h1", "zb-h2"}) {
    EXPECT_EQ(hint_for(4, single_stage_schedule, 2), "write virtual_stages = 1");
    EXPECT_EQ(hint_for(3, single_stage_schedule, 2), "write pipeline = 3 and virtual_stages = 1");
  }
  EXPECT_EQ(hint_for(8, "zb-v", 3), "write virtual_stages = 2");
  EXPECT_EQ(hint_for(4, "zb-v", 3), "write pipeline_schedule = \"zb-h1\" and virtual_stages = 1");
}

TEST(RecipeErrors, AKeyOfTheSameSectionComesBeforeOneOfAnother) {
  EXPECT_EQ(error_of(kGptRecipe, {"parallel.schedule=1F1B"}),
            "--set parallel.schedule=1F1B: unknown key 'parallel.schedule'; did you mean "
            "'parallel.pipeline_schedule'?");
}

TEST(RecipeErrors, WhatOtherProgramsCallAPrecisionIsUnderstood) {
  for (const auto& [word, name] :
       std::vector<std::pair<std::string, std::string>>{{"bfloat16", "bf16"},
                                                        {"float16", "fp16"},
                                                        {"half", "fp16"},
                                                        {"float32", "fp32"},
                                                        {"float64", "fp64"},
                                                        {"double", "fp64"}}) {
    EXPECT_THAT(error_of(kGptRecipe, {"train.precision=" + word}),
                HasSubstr("; did you mean '" + name + "'?"));
  }
}

TEST(RecipeErrors, TheHintOfAnUnknownKeyHasTheKeysOfTheKind) {
  const std::string gpt = hint_of(with(kGptRecipe, "layers", "layer"));
  EXPECT_THAT(gpt,
              StartsWith("[model] has kind, loss, from, from_rename, from_ignore, layers, dim, "));
  EXPECT_THAT(gpt, Not(HasSubstr("input_dim")));
  const std::string mlp =
      "[model] has kind, loss, from, from_rename, from_ignore, input_dim, hidden_dims, output_dim, "
      "activation";
  EXPECT_EQ(hint_of(kMlpRecipe, {"model.layer=2"}), mlp);
  // The override's kind counts, and a key of the other kind is not suggested.
  EXPECT_EQ(hint_of(kGptRecipe, {"model.kind=mlp", "model.zzz=2"}), mlp);
  EXPECT_EQ(error_of(kMlpRecipe, {"model.layer=2"}),
            "--set model.layer=2: unknown key 'model.layer'");
  // Where no kind is known yet, all of them are there.
  EXPECT_THAT(hint_of(with(kGptRecipe, "kind = \"gpt\"\nlayers", "layer"), {}),
              AllOf(HasSubstr("seq_len"), HasSubstr("input_dim")));
}

TEST(RecipeErrors, SizeAndDepthAreBounded) {
  EXPECT_THAT(error_of(std::string((1 << 20) + 1, '#')), HasSubstr("are too many for a recipe"));
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "a.";
  EXPECT_THAT(error_of(deep + "a = 1"), HasSubstr("dots"));
  // A string that looks closed too early must not hide what follows.
  EXPECT_THAT(error_of("x = \"\"\"a\"\"\"\"\n" + deep + "a = 1"), HasSubstr("dots"));
  EXPECT_THAT(error_of("x = 'a\"b'\n" + deep + "a = 1"), HasSubstr("dots"));
  EXPECT_THAT(error_of("x = \"" + deep + "\""), HasSubstr("unknown key 'x'"));
  EXPECT_THAT(error_of("x = " + std::string(100'000, '[')), HasSubstr("not valid TOML"));
  EXPECT_THAT(error_of(kGptRecipe, {"name=" + deep}), HasSubstr("name"));
}

}  // namespace
}  // namespace troika::testing
