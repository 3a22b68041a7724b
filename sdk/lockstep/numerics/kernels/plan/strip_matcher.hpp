// Matching ops that share rows: a producer, and all that joins it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "plan/passes.hpp"
#include "plan/strip_axes.hpp"

namespace lockstep {

constexpr std::size_t kMostMembers = 256;  // planning takes their square

// One group as it grows, op by op in the Program's order.
class StripMatcher {
public:
    enum class Role {
        kNone,
        kTile,       // [batch, row, column]: members read it in a buffer, at their own row and column
        kRow,        // [batch, row], of a fold or a map of such: members read it at their own row
        kResult,     // of a consumer: whole behind the last row alone, so that no member reads it
        kPostponed,  // reads what the group leaves, or a member and cannot join: runs after the group
    };
    struct Member {
        MemberKind kind;
        int op;
    };

    StripMatcher(const Planner& plan, Index rows, Index columns);

    // Starts with a product, whose output axes are the group's. One whose operands are the same for every batch is better computed
    // as a whole, where they are packed once; the group then reads what it left in memory. So is a product of codes.
    bool begin(int op);
    // Takes the other group's axes and computes `op`, a tile of it, again, after the tiles that it reads.
    bool recompute(const StripMatcher& other, int op);
    // Joins every op from `first` on that reads members and can, and those `beside` them: producers and maps that read none.
    void grow(int first, const std::vector<bool>& taken, const std::function<bool(int)>& beside);

    // Maps of tiles that members read in place, computed since the first member.
    std::vector<int> maps_beside() const;
    // Tiles that ops outside of the group read.
    std::vector<int> read_outside(const std::vector<std::vector<int>>& readers) const;
    bool has(int op) const;
    bool folds_maxima() const;
    int last() const;
    // The first member that the other group does not have.
    int first_beside(const StripMatcher& other) const;

    // For whoever makes the group of it.
    Role role(int op) const { return role_[static_cast<std::size_t>(op)]; }
    const std::vector<Member>& members() const { return members_; }
    const StripAxes& axes() const { return axes_; }
    bool per_batch() const { return per_batch_; }
    int in_memory() const { return in_memory_; }
    // The consumer that a dot is, and which of its operands the tile is.
    struct Match {
        Consumer consumer;
        std::size_t tile;
    };
    std::optional<Match> consumer(int op) const;

private:
    const std::vector<View>& views_of(int op) const { return plan_->views[static_cast<std::size_t>(op)]; }
    bool is(const View& view, Role role) const { return view.tag == Tag::kOp && this->role(view.index) == role; }
    void insert(MemberKind kind, int op, Role role);
    bool reads_in_place(const Descriptor& op, const View& view) const;
    bool join(int op);
    void join_beside(int op);
    bool join_map(int op);
    bool join_fold(int op);
    bool join_producer(int op);
    bool join_consumer(int op);

    const Planner* plan_;
    StripAxes axes_;
    bool per_batch_ = false;  // some producer's columns differ from batch to batch
    int in_memory_ = -1;      // the product that the group reads from memory: its role is a tile's, and it is no member
    std::vector<Role> role_;
    std::vector<Member> members_;
};

}  // namespace lockstep
