// The shape of a document: its sections and their keys. A section may let its `kind` choose a
// component, whose keys then stand beside the section's own. The mechanism reads, checks, writes
// and documents any such document without knowing its type.
#pragma once

#include <troika/config/component.h>
#include <troika/config/key.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The treatment of a key of a kind that was not chosen: refused as a mistake, or left unused with a
// warning.
enum class OtherKinds { kRefused, kUnused };

// The key that chooses the component of a section.
struct KindChoice {
  KindSpec spec;
  std::string_view section, key;
};

// A key that is gone. Recipes of older runs still have it, with the value that did nothing.
struct RetiredKey {
  std::string_view name;
  std::string_view idle;  // a file may give it this value, which is left out; no other
};

struct Section {
  std::string_view name;  // empty: before the first section
  // The section's own keys; the one called `kind` chooses the component.
  std::vector<Key> keys;
  // The struct of these keys in a document. Null where the only key is the kind.
  void* (*at)(void* document) = nullptr;
  // The options of the chosen component. Null where the section has no kind.
  Options& (*options)(void* document) = nullptr;
  OtherKinds other_kinds = OtherKinds::kRefused;
  // Set where a key of another section chooses the component: [model] loss chooses that of [loss].
  std::optional<KindChoice> chosen_elsewhere = {};
  std::vector<RetiredKey> retired = {};
};

// One key of a document, with its section and, where a component declares it, that component.
struct SchemaKey {
  const Section* section;
  const Component* kind;  // null: the section's own
  const Key* key;

  [[nodiscard]] std::string full_name() const;  // "model.layers", "name"
};

// Const access is thread safe.
class Schema {
 public:
  // Takes a function that makes a document with every default, for messages and documents.
  Schema(std::vector<Section> sections, std::shared_ptr<void> (*make_default)());

  [[nodiscard]] const std::vector<Section>& sections() const { return sections_; }
  // Returns the names of the sections, without the nameless first one.
  [[nodiscard]] std::vector<std::string_view> section_names() const;
  // Returns null where there is none of this name.
  [[nodiscard]] const Section* find_section(std::string_view name) const;
  // Returns the keys of all kinds, in the order of the file; those of one name are all there.
  [[nodiscard]] std::vector<SchemaKey> all_keys() const;
  // Returns the keys that the kinds of this document have.
  [[nodiscard]] std::vector<SchemaKey> keys_of(const void* document) const;
  // Returns the key of this name that the document's kinds have, if any.
  [[nodiscard]] std::optional<SchemaKey> find(const void* document, std::string_view section,
                                              std::string_view key) const;
  // Returns a fresh document.
  [[nodiscard]] std::shared_ptr<void> make_default() const { return make_default_(); }

 private:
  std::vector<Section> sections_;
  std::shared_ptr<void> (*make_default_)();
};

// Returns the struct that the key's accessors take. The document's kinds must have the key.
[[nodiscard]] void* options_at(const SchemaKey& key, void* document);
[[nodiscard]] const void* options_at(const SchemaKey& key, const void* document);

// Returns the component that a section of this document has chosen; null where it has no kind.
[[nodiscard]] const Component* chosen_kind(const Section& section, const void* document);
// Returns the key that chooses it; nothing where the section has no kind.
[[nodiscard]] std::optional<KindChoice> kind_choice(const Section& section);
// Returns `kind = "mlp"`, as a recipe says it.
[[nodiscard]] std::string kind_text(const KindChoice& choice, const Component& kind);

// Makes a key that chooses a component. `kAt` finds the Chosen in a document.
template <auto kAt>
[[nodiscard]] Key kind_key(std::string_view meaning, std::string_view name = "kind") {
  using Choice = std::remove_reference_t<decltype(kAt(nullptr))>;
  return {name,
          KindSpec{&Choice::list,
                   [](const void* document) -> const Component* {
                     return &kAt(const_cast<void*>(document)).kind();
                   },
                   [](void* document, const Component& kind) { kAt(document).choose(kind); }},
          meaning};
}

// Names a table of a list, or of named ones: "groups[0]", "inputs.x".
[[nodiscard]] std::string element_name(std::string_view list, const TablesSpec& spec,
                                       const void* options, std::size_t index);

// Throws UsageError naming key and place where the value of the key is out of its range.
void check_value(const SchemaKey& key, const void* document, const Origins& origins);

// Throws UsageError naming key and place where a value of the document is out of its range, then
// what the components say of their options (Component::check).
void check_values(const Schema& schema, const void* document, const Origins& origins);

}  // namespace troika
