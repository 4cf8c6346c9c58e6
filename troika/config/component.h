// Components that a section's `kind` can name: models, optimisers, sources of data. A component
// declares its own keys, defaults and checks, and stands in one explicit list. Its options are a
// struct of its own type, which the mechanism of recipes holds without knowing that type.
#pragma once

#include <troika/base/error.h>
#include <troika/config/key.h>
#include <troika/config/origins.h>

#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troika {

// Holds an options struct of any type, and copies and compares it as a value.
class Options {
 public:
  Options() : Options(Empty{}) {}
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Options>) explicit Options(T value)
      : value_(std::make_unique<Typed<T>>(std::move(value))) {}
  Options(const Options& other) : value_(other.value_->clone()) {}
  Options(Options&&) noexcept = default;
  Options& operator=(const Options& other) {
    if (this != &other) value_ = other.value_->clone();
    return *this;
  }
  Options& operator=(Options&&) noexcept = default;
  ~Options() = default;

  // Throws InternalError where the options are of another component.
  template <class T>
  [[nodiscard]] const T& as() const {
    check(holds<T>(), "options of another component");
    return static_cast<const Typed<T>&>(*value_).value;
  }
  template <class T>
  [[nodiscard]] T& as() {
    check(holds<T>(), "options of another component");
    return static_cast<Typed<T>&>(*value_).value;
  }
  template <class T>
  [[nodiscard]] bool holds() const {
    return typeid(*value_) == typeid(Typed<T>);
  }
  // Returns the address of the options struct, for the tables of keys.
  [[nodiscard]] void* data() { return value_->data(); }
  [[nodiscard]] const void* data() const { return value_->data(); }
  bool operator==(const Options& other) const { return value_->equals(*other.value_); }

 private:
  struct Empty {
    bool operator==(const Empty&) const = default;
  };
  struct Value {
    virtual ~Value() = default;
    [[nodiscard]] virtual std::unique_ptr<Value> clone() const = 0;
    [[nodiscard]] virtual bool equals(const Value& other) const = 0;
    [[nodiscard]] virtual void* data() = 0;
  };
  template <class T>
  struct Typed final : Value {
    explicit Typed(T held) : value(std::move(held)) {}
    [[nodiscard]] std::unique_ptr<Value> clone() const override {
      return std::make_unique<Typed>(value);
    }
    [[nodiscard]] bool equals(const Value& other) const override {
      return typeid(other) == typeid(Typed) && static_cast<const Typed&>(other).value == value;
    }
    [[nodiscard]] void* data() override { return &value; }
    T value;
  };

  std::unique_ptr<Value> value_;
};

// Const access is thread safe.
class Component {
 public:
  virtual ~Component() = default;

  // Returns the word of the recipe.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Returns its keys, in the order of the file.
  [[nodiscard]] virtual std::span<const Key> keys() const = 0;
  // Returns the options that a recipe starts from.
  [[nodiscard]] virtual Options defaults() const = 0;
  // Fills in defaults that follow from other keys; `origins` knows which keys were written. Throws
  // UsageError where none follows.
  virtual void derive(Options& options, const Origins& origins) const;
  // Throws UsageError where keys contradict each other. Each key is within its range by then.
  virtual void check(const Options& options, const Origins& origins) const;

 protected:
  Component() = default;
  Component(const Component&) = default;
  Component& operator=(const Component&) = default;
};

// A component of `Kind` whose options are a T: its name, keys and defaults, declared at once. The
// class that derives from it implements the rest of the kind.
template <class Kind, class T>
class Declared : public Kind {
 public:
  [[nodiscard]] std::string_view name() const final { return name_; }
  [[nodiscard]] std::span<const Key> keys() const final { return keys_; }
  [[nodiscard]] Options defaults() const final { return Options(defaults_); }

 protected:
  Declared(std::string_view name, std::vector<Key> keys, T defaults = {})
      : name_(name), keys_(std::move(keys)), defaults_(std::move(defaults)) {}

 private:
  std::string_view name_;
  std::vector<Key> keys_;
  T defaults_;
};

// The component that a section has chosen, with its options. `Kind` is a Component that has
// `static std::span<const Kind* const> all()`, the explicit list, and `static const Kind&
// default_kind()`.
template <class Kind>
class Chosen {
 public:
  Chosen() : Chosen(Kind::default_kind()) {}
  explicit Chosen(const Kind& kind) : kind_(&kind), options_(kind.defaults()) {}
  // Takes the kind whose options `options` are.
  template <class T>
  Chosen(const Kind& kind, T options) : kind_(&kind), options_(std::move(options)) {}

  // Throws InternalError where there is no kind of this name.
  [[nodiscard]] static Chosen named(std::string_view name) {
    for (const Kind* kind : Kind::all()) {
      if (kind->name() == name) return Chosen(*kind);
    }
    throw InternalError("internal error: no component is called " + std::string(name));
  }

  [[nodiscard]] const Kind& kind() const { return *kind_; }
  [[nodiscard]] std::string_view name() const { return kind_->name(); }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] Options& options() { return options_; }
  // Throws InternalError where another kind is chosen.
  template <class T>
  [[nodiscard]] const T& as() const {
    return options_.as<T>();
  }
  template <class T>
  [[nodiscard]] T& as() {
    return options_.as<T>();
  }
  template <class T>
  [[nodiscard]] bool holds() const {
    return options_.holds<T>();
  }
  bool operator==(const Chosen& other) const = default;

  // List the components and choose one, for the section's key `kind`.
  static std::vector<const Component*> list() { return {Kind::all().begin(), Kind::all().end()}; }
  void choose(const Component& kind) { *this = Chosen(static_cast<const Kind&>(kind)); }

 private:
  const Kind* kind_;
  Options options_;
};

}  // namespace troika
