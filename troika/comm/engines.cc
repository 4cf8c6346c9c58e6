#include <troika/base/error.h>
#include <troika/comm/engines.h>
#include <troika/comm/factory.h>
#include <troika/comm/meeting.h>

#include <algorithm>
#include <optional>

namespace troika {

std::vector<EngineFacts> list_engines() {
  return {detail::shm_facts(), detail::gloo_facts(), detail::mpi_facts(), detail::nccl_facts(),
          detail::fake_facts()};
}

EngineKind resolve_engine(EngineKind kind) {
  const std::vector<EngineFacts> engines = list_engines();
  if (kind == EngineKind::kAuto) {
    const auto usable = std::find_if(engines.begin(), engines.end(), [](const EngineFacts& each) {
      return each.usable && each.kind != EngineKind::kFake;
    });
    check(usable != engines.end(), "gloo is always usable");
    return usable->kind;
  }
  const auto chosen = std::find_if(engines.begin(), engines.end(),
                                   [&](const EngineFacts& each) { return each.kind == kind; });
  check(chosen != engines.end(), "every engine is listed");
  if (!chosen->usable) {
    throw UsageError("engine " + chosen->name +
                         (chosen->built ? " cannot be used: " : " is not built: ") + chosen->reason,
                     "use comm.engine = \"gloo\"");
  }
  return kind;
}

Group make_group(std::string axis, std::vector<int> ranks, int index,
                 const EngineOptions& options) {
  EngineKind kind = resolve_engine(options.kind);
  if (ranks.size() == 1) {
    return Group(std::move(axis), std::move(ranks), index, options.generation, nullptr);
  }
  const detail::EngineContext context{axis, ranks, index, options};
  std::shared_ptr<GroupEngine> engine;
  std::optional<detail::Meeting> meeting;
  if (kind != EngineKind::kFake) meeting.emplace(context);
  if (options.kind == EngineKind::kAuto && kind == EngineKind::kShm &&
      !detail::share_a_host(*meeting)) {
    kind = EngineKind::kGloo;
  }
  switch (kind) {
    case EngineKind::kAuto:
      break;
    case EngineKind::kGloo:
      engine = detail::make_gloo_engine(context, *meeting);
      break;
    case EngineKind::kFake:
      engine = detail::make_fake_engine(context);
      break;
    case EngineKind::kShm:
      engine = detail::make_shm_engine(context, *meeting);
      break;
    case EngineKind::kMpi:
      engine = detail::make_mpi_engine(context);
      break;
    case EngineKind::kNccl:
      engine = detail::make_nccl_engine(context);
      break;
  }
  return Group(std::move(axis), std::move(ranks), index, options.generation, std::move(engine),
               options.observers);
}

}  // namespace troika
