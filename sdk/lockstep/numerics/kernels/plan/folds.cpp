// Folds as steps.
#include "plan/axes.hpp"
#include "plan/steps.hpp"

namespace lockstep {

FoldStep plan_fold(const Descriptor& op, const std::vector<View>& views) {
    FoldStep step{};
    FoldPlan& plan = step.plan;
    const auto rank = op.extents.size();
    Axes axes{op.extents, {}};
    for (const View& view : views) axes.strides.push_back(view.strides);
    axes = axes.merged();
    plan.mode = static_cast<FoldMode>(op.mode);
    plan.axes = static_cast<int>(axes.extents.size());
    plan.outputs = op.elements;
    plan.k = op.k;
    step.operands = static_cast<int>(views.size());
    for (std::size_t v = 0; v < views.size(); ++v) {
        plan.k_stride[v] = views[v].strides[rank];
        step.sources[v] = source_of(views[v]);
        for (int ax = 0; ax < plan.axes; ++ax) plan.strides[v][ax] = axes.strides[v][static_cast<std::size_t>(ax)];
    }
    for (int ax = 0; ax < plan.axes; ++ax) plan.extents[ax] = axes.extents[static_cast<std::size_t>(ax)];
    return step;
}

Step plan_fold_step(const Descriptor& op, const std::vector<View>& views) {
    for (const View& view : views)
        if (view.tag == Tag::kIota && !view.uniform()) return PlainStep{};
    if (views.size() == 2)
        if (auto gemm = plan_gemm(op, views)) return *gemm;
    return plan_fold(op, views);
}

}  // namespace lockstep
