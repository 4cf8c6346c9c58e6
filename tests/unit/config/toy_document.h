// A document of two sections with kinds: what the mechanism of recipes reads, checks and writes
// without knowing anything of recipes.
#pragma once

#include <troika/config/schema.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class Colour { kRed, kGreen, kBlue };

template <>
inline std::span<const std::string_view> names_of<Colour>() {
  static constexpr std::array<std::string_view, 3> kNames = {"red", "green", "blue"};
  return kNames;
}

namespace testing {

class ShapeKind : public Component {
 public:
  [[nodiscard]] static std::span<const ShapeKind* const> all();
  [[nodiscard]] static const ShapeKind& default_kind() { return *all().front(); }
};

struct CircleOptions {
  double radius = 1;
  std::int64_t segments = 8;  // default: ten times the radius

  bool operator==(const CircleOptions&) const = default;
};

class CircleKind final : public Declared<ShapeKind, CircleOptions> {
 public:
  CircleKind()
      : Declared("circle", {K::number<&CircleOptions::radius>("radius", ranges::kAboveZero,
                                                              "from the middle to the edge")
                                .required(),
                            K::integer<&CircleOptions::segments>("segments", ranges::kCount,
                                                                 "lines that it is drawn with")
                                .derived_from("10 radius")}) {}

  void derive(Options& options, const Origins& origins) const override {
    auto& circle = options.as<CircleOptions>();
    if (!origins.has("shape.segments")) {
      circle.segments = static_cast<std::int64_t>(10 * circle.radius);
    }
  }
  void check(const Options& options, const Origins& origins) const override {
    if (options.as<CircleOptions>().segments >= 3) return;
    origins.fail({"shape.segments"}, "a circle has at least 3 segments");
  }

 private:
  using K = KeysOf<CircleOptions>;
};

struct SquareOptions {
  std::int64_t side = 4;

  bool operator==(const SquareOptions&) const = default;
};

class SquareKind final : public Declared<ShapeKind, SquareOptions> {
 public:
  SquareKind()
      : Declared("square", {KeysOf<SquareOptions>::integer<&SquareOptions::side>(
                               "side", {1, 100}, "width and height")}) {}
};

// The shape that `of` names, with its keys in the table `options`.
struct BorrowedOptions {
  std::string of;
  const Component* shape = nullptr;
  Options own;

  bool operator==(const BorrowedOptions&) const = default;
};

class BorrowedKind final : public Declared<ShapeKind, BorrowedOptions> {
 public:
  BorrowedKind()
      : Declared("borrowed",
                 {KeysOf<BorrowedOptions>::text<&BorrowedOptions::of>("of", "circle or square")
                      .required(),
                  {"options",
                   OptionsSpec{&choose, [](const void* options) { return at(options).shape; },
                               [](void* options) {
                                 return static_cast<BorrowedOptions*>(options)->own.data();
                               },
                               [](const void* options) { return at(options).own.data(); }},
                   "its keys"}}) {}

 private:
  static const BorrowedOptions& at(const void* options) {
    return *static_cast<const BorrowedOptions*>(options);
  }
  static void choose(void* options, const Origins& origins) {
    auto& own = *static_cast<BorrowedOptions*>(options);
    for (const ShapeKind* kind : all()) {
      if (kind->name() == own.of) own.shape = kind;
    }
    if (own.shape == nullptr) origins.fail({"shape.of"}, "no shape is called '" + own.of + "'");
    own.own = own.shape->defaults();
  }
};

inline std::span<const ShapeKind* const> ShapeKind::all() {
  static const CircleKind kCircle;
  static const SquareKind kSquare;
  static const BorrowedKind kBorrowed;
  static const std::array<const ShapeKind*, 3> kAll = {&kCircle, &kSquare, &kBorrowed};
  return kAll;
}

class PaintKind : public Component {
 public:
  [[nodiscard]] static std::span<const PaintKind* const> all();
  [[nodiscard]] static const PaintKind& default_kind() { return *all().front(); }
};

struct PlainOptions {
  Colour colour = Colour::kRed;

  bool operator==(const PlainOptions&) const = default;
};

class PlainKind final : public Declared<PaintKind, PlainOptions> {
 public:
  PlainKind()
      : Declared("plain", {KeysOf<PlainOptions>::choice<&PlainOptions::colour>(
                              "colour", "everywhere", Colour::kRed, Colour::kBlue)}) {}
};

struct Stripe {
  std::string name;
  std::int64_t width = 1;
  std::vector<std::int64_t> dots;

  bool operator==(const Stripe&) const = default;
};

inline std::vector<Key> stripe_keys() {
  using K = KeysOf<Stripe>;
  return {K::integer<&Stripe::width>("width", {1, 100}, "in millimetres").required(),
          K::integers<&Stripe::dots>("dots", {0, 100}, "where dots are")};
}

struct StripedOptions {
  std::array<double, 2> widths = {0.25, 0.5};
  std::vector<std::string> colours;
  std::vector<Stripe> stripes;
  std::vector<Condition> where;

  bool operator==(const StripedOptions&) const = default;
};

class StripedKind final : public Declared<PaintKind, StripedOptions> {
 public:
  StripedKind()
      : Declared("striped",
                 {K::pair<&StripedOptions::widths>("widths", ranges::kBelowOne, "of the stripes"),
                  K::texts<&StripedOptions::colours>("colours", "from left to right"),
                  K::named_tables<&StripedOptions::stripes>("stripes", stripe_keys, "single ones"),
                  K::conditions<&StripedOptions::where>("where", "which parts have stripes")}) {}

 private:
  using K = KeysOf<StripedOptions>;
};

inline std::span<const PaintKind* const> PaintKind::all() {
  static const PlainKind kPlain;
  static const StripedKind kStriped;
  static const std::array<const PaintKind*, 2> kAll = {&kPlain, &kStriped};
  return kAll;
}

struct Drawing {
  std::string title = "none";
  std::string pen = "soft";
  std::optional<std::int64_t> copies;
  Chosen<ShapeKind> shape;
  double gloss = 0;  // of [paint], whatever its kind
  Chosen<PaintKind> paint;

  bool operator==(const Drawing&) const = default;
};

inline constexpr auto kShape = [](void* document) -> Chosen<ShapeKind>& {
  return static_cast<Drawing*>(document)->shape;
};
inline constexpr auto kPaint = [](void* document) -> Chosen<PaintKind>& {
  return static_cast<Drawing*>(document)->paint;
};

inline std::vector<std::string_view> pens() {
  return {"soft", "hard"};
}

// [shape] refuses the keys of the other kind; [paint] leaves them unused.
inline const Schema& drawing_schema() {
  using K = KeysOf<Drawing>;
  const auto document = [](void* drawing) { return drawing; };
  static const Schema kSchema(
      {{"",
        {K::text<&Drawing::title>("title", "what is drawn"),
         K::word<&Drawing::pen>("pen", pens, "what with"),
         K::auto_integer<&Drawing::copies>("copies", ranges::kCount, "how many")},
        document},
       {"shape",
        {kind_key<kShape>("which shape").required()},
        nullptr,
        [](void* drawing) -> Options& { return kShape(drawing).options(); }},
       {"paint",
        {kind_key<kPaint>("which paint"),
         K::number<&Drawing::gloss>("gloss", ranges::kNonNegative, "how it shines")},
        document,
        [](void* drawing) -> Options& { return kPaint(drawing).options(); },
        OtherKinds::kUnused}},
      [] { return std::shared_ptr<void>(std::make_shared<Drawing>()); });
  return kSchema;
}

}  // namespace testing
}  // namespace troika
