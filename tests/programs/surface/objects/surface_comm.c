/* Communicators and groups: every function of the families [comm] and [group] except those of inter-communicators
 * (surface_intercomm.c). See checkpointed.h and test_surface.py; 4 ranks. */
#include "../../mpi_states.h"
#include "../../counted_attribute.h"

static int total; /* sum of rank + 1 over the ranks */

static int sum(int value, MPI_Comm comm) {
    int result = -1;
    MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, comm);
    return result;
}

static int compared(MPI_Comm a, MPI_Comm b) {
    int result = -1;
    MPI_Comm_compare(a, b, &result);
    return result;
}

static void free_all(MPI_Comm **comms, size_t n) {
    for (size_t i = 0; i < n; i++) {
        MPI_Comm_free(comms[i]);
        CHECK(*comms[i] == MPI_COMM_NULL);
    }
}

/* A message around the ring, on a communicator of all ranks. */
static void ring(MPI_Comm comm) {
    int r, n, to = -1;
    MPI_Comm_rank(comm, &r);
    MPI_Comm_size(comm, &n);
    MPI_Sendrecv(&r, 1, MPI_INT, (r + 1) % n, 7, &to, 1, MPI_INT, (r + n - 1) % n, 7, comm, MPI_STATUS_IGNORE);
    CHECK(to == (r + n - 1) % n);
}

/* ---- constructors, questions ---- */

static MPI_Comm duplicate, informed, uninformed, halves, reversed, node, numa, created, disjoint, grouped;

static int passed_on; /* the library gives hints to duplicates, as before MPI 4.0 */

static int has_hint(MPI_Comm comm) {
    char text[MPI_MAX_INFO_VAL + 1];
    int flag;
    MPI_Info info;
    MPI_Comm_get_info(comm, &info);
    MPI_Info_get(info, "mpi_assert_no_any_tag", MPI_MAX_INFO_VAL, text, &flag);
    MPI_Info_free(&info);
    return flag && !strcmp(text, "true");
}

static void constructors_set_up(void) {
    MPI_Group world, three, mine;
    MPI_Info info;
    int zero = 0, pair[2] = {rank / 2 * 2, rank / 2 * 2 + 1};
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_assert_no_any_tag", "true");
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &informed);
    MPI_Info_free(&info);
    MPI_Comm_dup(informed, &uninformed);
    passed_on = has_hint(uninformed);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &halves);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 3 ? MPI_UNDEFINED : 5, -rank, &reversed);
    CHECK((reversed == MPI_COMM_NULL) == (rank == 3));
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_hw_resource_type", "mpi_shared_memory");
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_HW_GUIDED, 0, info, &numa);
    MPI_Info_free(&info);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_excl(world, 1, &zero, &three);
    MPI_Comm_create(MPI_COMM_WORLD, three, &created);
    CHECK((created == MPI_COMM_NULL) == (rank == 0));
    MPI_Group_incl(world, 2, pair, &mine);
    MPI_Comm_create(MPI_COMM_WORLD, mine, &disjoint);
    grouped = MPI_COMM_NULL;
    if (rank > 0) MPI_Comm_create_group(MPI_COMM_WORLD, three, 7, &grouped);
    MPI_Group_free(&world);
    MPI_Group_free(&three);
    MPI_Group_free(&mine);
}

static void constructors_check(void) {
    int r, n, value = rank;
    ring(duplicate);
    ring(informed);
    CHECK(sum(rank + 1, duplicate) == total && compared(duplicate, MPI_COMM_WORLD) == MPI_CONGRUENT);
    CHECK(compared(duplicate, duplicate) == MPI_IDENT && compared(duplicate, halves) == MPI_UNEQUAL);
    CHECK(has_hint(informed) && (passed_on || !has_hint(uninformed)));
    MPI_Comm_rank(halves, &r);
    MPI_Comm_size(halves, &n);
    CHECK(r == rank / 2 && n == 2 && sum(rank, halves) == 2 * (rank % 2) + 2);
    if (rank < 3) {
        MPI_Comm_rank(reversed, &r);
        CHECK(r == 2 - rank);
        MPI_Bcast(&value, 1, MPI_INT, 0, reversed);
        CHECK(value == 2 && compared(reversed, MPI_COMM_WORLD) == MPI_UNEQUAL);
    }
    MPI_Comm_test_inter(node, &n);
    CHECK(n == 0 && sum(1, node) == 4);
    if (numa != MPI_COMM_NULL) CHECK(sum(1, numa) == 4);
    if (rank > 0) {
        CHECK(sum(rank, created) == 6 && sum(rank, grouped) == 6 && compared(created, grouped) == MPI_CONGRUENT);
        MPI_Comm_rank(grouped, &r);
        CHECK(r == rank - 1);
    }
    CHECK(sum(rank, disjoint) == 4 * (rank / 2) + 1);
    MPI_Comm child; /* constructors still work, in the restarted job too */
    MPI_Comm_split(disjoint, 0, -rank, &child);
    MPI_Comm_rank(child, &r);
    CHECK(r == 1 - rank % 2);
    free_all((MPI_Comm *[]){&child, &duplicate, &informed, &uninformed, &halves, &node, &disjoint}, 7);
    if (numa != MPI_COMM_NULL) MPI_Comm_free(&numa);
    if (rank < 3) MPI_Comm_free(&reversed);
    if (rank > 0) free_all((MPI_Comm *[]){&created, &grouped}, 2);
}

/* ---- names and hints ---- */

static MPI_Comm named;

static void names_set_up(void) {
    MPI_Info info;
    MPI_Comm_dup(MPI_COMM_WORLD, &named);
    MPI_Comm_set_name(named, "a name");
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_assert_allow_overtaking", "true");
    MPI_Comm_set_info(named, info);
    MPI_Info_free(&info);
}

static void names_check(void) {
    char text[MPI_MAX_OBJECT_NAME + MPI_MAX_INFO_VAL];
    int n;
    MPI_Info info;
    MPI_Comm_get_name(named, text, &n);
    CHECK(!strcmp(text, "a name") && n == 6);
    MPI_Comm_get_name(MPI_COMM_SELF, text, &n);
    CHECK(!strcmp(text, "MPI_COMM_SELF"));
    MPI_Comm_get_info(named, &info);
    MPI_Info_get(info, "mpi_assert_allow_overtaking", MPI_MAX_INFO_VAL, text, &n);
    CHECK(n && !strcmp(text, "true"));
    MPI_Info_free(&info);
    MPI_Comm_set_name(named, "another");
    MPI_Comm_get_name(named, text, &n);
    CHECK(!strcmp(text, "another"));
    MPI_Comm_free(&named);
}

/* ---- nonblocking duplicates ---- */

enum { OPEN = 8 };
static MPI_Comm open_dups[OPEN], hinted_dup, done_dup, kept_dup;
static MPI_Request open_requests[OPEN], hinted_request;

static void idup_set_up(void) {
    MPI_Info info;
    MPI_Request request;
    counted_attribute_create();
    MPI_Comm_set_attr(MPI_COMM_WORLD, keyval, &rank);
    for (int i = 0; i < OPEN; i++) MPI_Comm_idup(MPI_COMM_WORLD, &open_dups[i], &open_requests[i]);
    CHECK(copies == OPEN); /* at the initiation */
    MPI_Comm_idup(MPI_COMM_WORLD, &done_dup, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_idup(done_dup, &kept_dup, &request); /* its parent is freed */
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&done_dup);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_assert_exact_length", "true");
    MPI_Comm_idup_with_info(MPI_COMM_WORLD, info, &hinted_dup, &hinted_request);
    MPI_Info_free(&info);
}

static void idup_check(void) {
    char text[MPI_MAX_INFO_VAL + 1];
    void *value;
    int flag;
    MPI_Info info;
    MPI_Waitall(OPEN, open_requests, MPI_STATUSES_IGNORE);
    MPI_Wait(&hinted_request, MPI_STATUS_IGNORE);
    CHECK(hinted_request == MPI_REQUEST_NULL && open_requests[3] == MPI_REQUEST_NULL);
    for (int i = 0; i < OPEN; i++) {
        ring(open_dups[i]);
        CHECK(sum(rank + 1, open_dups[i]) == total && compared(open_dups[i], kept_dup) == MPI_CONGRUENT);
        MPI_Comm_get_attr(open_dups[i], keyval, &value, &flag);
        CHECK(flag && value == (char *)&rank + 1);
        for (int k = 0; k < i; k++) CHECK(open_dups[i] != open_dups[k]);
    }
    MPI_Comm_get_info(hinted_dup, &info);
    MPI_Info_get(info, "mpi_assert_exact_length", MPI_MAX_INFO_VAL, text, &flag);
    CHECK(flag && !strcmp(text, "true"));
    MPI_Info_free(&info);
    ring(kept_dup);
    int before = deletions;
    for (int i = 0; i < OPEN; i++) MPI_Comm_free(&open_dups[i]);
    CHECK(deletions == before + OPEN);
    MPI_Comm_free(&hinted_dup);
    MPI_Comm_free(&kept_dup);
    MPI_Comm_delete_attr(MPI_COMM_WORLD, keyval);
    MPI_Comm_free_keyval(&keyval);
}

/* ---- error handlers: which constructors pass them on, and which handler applies where none was set ---- */

static MPI_Comm handed, unset;

static MPI_Errhandler handler_of(MPI_Comm comm) {
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(comm, &handler);
    return handler;
}

static void handlers_set_up(void) {
    MPI_Group world;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Comm_dup(MPI_COMM_WORLD, &handed);
    MPI_Comm_create(MPI_COMM_WORLD, world, &unset);
    MPI_Group_free(&world);
}

static void handlers_check(void) {
    CHECK(handler_of(MPI_COMM_WORLD) == MPI_ERRORS_RETURN && handler_of(MPI_COMM_SELF) == MPI_ERRORS_ARE_FATAL);
    CHECK(handler_of(handed) == MPI_ERRORS_RETURN && handler_of(unset) == MPI_ERRORS_ARE_FATAL);
    CHECK(class_of(MPI_Send(&rank, 1, MPI_INT, 99, 0, unset)) == MPI_ERR_RANK); /* but the world's applies */
    MPI_Comm_free(&handed);
    MPI_Comm_free(&unset);
}

/* ---- many ---- */

enum { MANY = 300 };
static MPI_Comm many[MANY];

static void many_set_up(void) {
    for (int i = 0; i < MANY; i++)
        MPI_Comm_split(i == 0 || i % 3 ? MPI_COMM_WORLD : many[i / 3], (rank * 7 + i) % 2, i % 2 ? rank : -rank,
                       &many[i]);
}

static void many_check(void) {
    for (int i = 0; i < MANY; i++) ring(many[i]);
    for (int i = 0; i < MANY; i++) MPI_Comm_free(&many[i]);
}

/* ---- groups ---- */

static MPI_Group members, others, odd, ends, both, common, rest, strided, outside, empty;

static void groups_set_up(void) {
    int zero = 0, odds[2] = {3, 1}, ranges[1][3] = {{0, 3, 3}}, stride[1][3] = {{3, 1, -1}};
    MPI_Comm_group(MPI_COMM_WORLD, &members);
    MPI_Group_excl(members, 1, &zero, &others);
    MPI_Group_incl(members, 2, odds, &odd);
    MPI_Group_range_incl(members, 1, ranges, &ends);
    MPI_Group_range_incl(members, 1, stride, &strided);
    MPI_Group_range_excl(members, 1, ranges, &outside);
    MPI_Group_union(odd, ends, &both);
    MPI_Group_intersection(others, ends, &common);
    MPI_Group_difference(members, odd, &rest);
    MPI_Group_incl(members, 0, NULL, &empty);
}

static int group_compared(MPI_Group a, MPI_Group b) {
    int result = -1;
    MPI_Group_compare(a, b, &result);
    return result;
}

/* Is it the group of these world ranks, in this order? */
static int consists(MPI_Group group, int n, const int *ranks) {
    int size_, own[4] = {0, 1, 2, 3}, world[4], mine = MPI_UNDEFINED, r;
    MPI_Group_size(group, &size_);
    if (size_ != n) return 0;
    MPI_Group_translate_ranks(group, n, own, members, world);
    for (int i = 0; i < n; i++) {
        if (world[i] != ranks[i]) return 0;
        if (ranks[i] == rank) mine = i;
    }
    MPI_Group_rank(group, &r);
    return r == mine;
}

static void groups_check(void) {
    CHECK(consists(members, 4, (int[]){0, 1, 2, 3}) && consists(others, 3, (int[]){1, 2, 3}) &&
          consists(odd, 2, (int[]){3, 1}));
    CHECK(consists(ends, 2, (int[]){0, 3}) && consists(strided, 3, (int[]){3, 2, 1}) &&
          consists(outside, 2, (int[]){1, 2}));
    CHECK(consists(both, 3, (int[]){3, 1, 0}) && consists(common, 1, (int[]){3}) && consists(rest, 2, (int[]){0, 2}));
    CHECK(empty == MPI_GROUP_EMPTY);
    CHECK(group_compared(others, strided) == MPI_SIMILAR && group_compared(others, odd) == MPI_UNEQUAL);
    MPI_Group again;
    MPI_Comm_group(MPI_COMM_WORLD, &again);
    CHECK(group_compared(members, again) == MPI_IDENT);
    int r = 2, translated;
    MPI_Group_translate_ranks(members, 1, &r, odd, &translated);
    CHECK(translated == MPI_UNDEFINED);
    MPI_Group *all[] = {&members, &others, &odd, &ends, &strided, &outside, &both, &common, &rest, &again};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        MPI_Group_free(all[i]);
        CHECK(*all[i] == MPI_GROUP_NULL);
    }
}

/* ---- wrong arguments ---- */

static void wrong_set_up(void) {}

static void wrong_check(void) {
    MPI_Comm freed, none = MPI_COMM_NULL, result;
    MPI_Group world, bad = (MPI_Group)-1;
    MPI_Request request;
    int n, ranks[2] = {0, 17};
    MPI_Comm_dup(MPI_COMM_SELF, &freed);
    MPI_Comm old = freed;
    MPI_Comm_free(&freed);
    const MPI_Comm bads[] = {old, MPI_COMM_NULL, (MPI_Comm)0, (MPI_Comm)-1, (MPI_Comm)MPI_GROUP_EMPTY};
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        MPI_Comm b = bads[i];
        CHECK(class_of(MPI_Comm_rank(b, &n)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_size(b, &n)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_dup(b, &result)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_idup(b, &result, &request)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_split(b, 0, 0, &result)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_compare(MPI_COMM_SELF, b, &n)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_test_inter(b, &n)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_free(&b)) == MPI_ERR_COMM);
        CHECK(class_of(MPI_Comm_set_name(b, "x")) == MPI_ERR_COMM);
    }
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    CHECK(class_of(MPI_Comm_free(&none)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Comm_create(MPI_COMM_WORLD, bad, &result)) == MPI_ERR_GROUP);
    CHECK(class_of(MPI_Comm_create_group(MPI_COMM_WORLD, MPI_GROUP_NULL, 1, &result)) == MPI_ERR_GROUP);
    CHECK(class_of(MPI_Comm_split_type(MPI_COMM_WORLD, 4711, 0, MPI_INFO_NULL, &result)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Comm_rank(MPI_COMM_WORLD, NULL)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Comm_size(MPI_COMM_WORLD, NULL)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Group_incl(world, 2, ranks, &bad)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Group_rank(MPI_GROUP_NULL, &n)) == MPI_ERR_GROUP);
    MPI_Group_free(&world);
}

/* ---- MPI_Comm_free is local: members free at any time, and the other members continue with messages ---- */

enum { LOOPS = 150 }; /* of communicators that are freed: the members have to agree on it now and then */

static MPI_Comm part, late;
static MPI_Request part_receive, part_send, part_barrier, part_sum;
static int part_message, part_value, part_result;

static void free_in_any_order(void) {
    MPI_Comm chain = MPI_COMM_WORLD;
    for (int i = 0; i < LOOPS; i++) {
        MPI_Comm comms[3], next;
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comms[0]);
        MPI_Comm_dup(comms[0], &comms[1]);
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[2]);
        MPI_Comm_dup(chain, &next);
        if (chain != MPI_COMM_WORLD) MPI_Comm_free(&chain);
        chain = next;
        for (int k = 0; k < 3; k++) MPI_Comm_free(&comms[(k + rank + i) % 3]);
    }
    MPI_Comm_free(&chain);
}

static void freed_set_up(void) {
    MPI_Comm one, other;
    MPI_Comm_dup(MPI_COMM_WORLD, &one);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    if (rank > 0) MPI_Recv(NULL, 0, MPI_INT, rank - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Comm_free(rank % 2 ? &one : &other);
    MPI_Comm_free(rank % 2 ? &other : &one);
    if (rank < size - 1) MPI_Send(NULL, 0, MPI_INT, rank + 1, 1, MPI_COMM_WORLD); /* only now may the next one free */

    free_in_any_order();
    MPI_Comm_dup(MPI_COMM_WORLD, &part);
    MPI_Comm_dup(MPI_COMM_WORLD, &late);
    part_value = rank + 1;
    MPI_Allreduce_init(&part_value, &part_result, 1, MPI_INT, MPI_SUM, part, MPI_INFO_NULL, &part_sum);
    MPI_Ibarrier(part, &part_barrier);
    if (rank == 0) MPI_Irecv(&part_message, 1, MPI_INT, 1, 5, part, &part_receive);
    if (rank == 2) MPI_Issend(&rank, 1, MPI_INT, 3, 6, part, &part_send);
    if (rank == 0 || rank == 2) MPI_Comm_free(&part);
}

static void freed_check(void) {
    int value = rank + 100, got = -1, done = 1;
    if (rank == 2) MPI_Test(&part_send, &done, MPI_STATUS_IGNORE);
    CHECK(rank != 2 || !done);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        MPI_Send(&value, 1, MPI_INT, 0, 5, part); /* to a member that has freed it */
        MPI_Sendrecv(&value, 1, MPI_INT, 3, 7, &got, 1, MPI_INT, 3, 7, part, MPI_STATUS_IGNORE);
        CHECK(got == 103);
    }
    if (rank == 3) {
        MPI_Recv(&got, 1, MPI_INT, 2, 6, part, MPI_STATUS_IGNORE);
        CHECK(got == 2);
        MPI_Sendrecv(&value, 1, MPI_INT, 1, 7, &got, 1, MPI_INT, 1, 7, part, MPI_STATUS_IGNORE);
        CHECK(got == 101);
    }
    if (rank == 2) MPI_Wait(&part_send, MPI_STATUS_IGNORE);
    if (rank == 0) MPI_Wait(&part_receive, MPI_STATUS_IGNORE);
    CHECK(rank != 0 || part_message == 101);
    MPI_Wait(&part_barrier, MPI_STATUS_IGNORE);
    MPI_Start(&part_sum);
    MPI_Wait(&part_sum, MPI_STATUS_IGNORE);
    CHECK(part_result == total);
    MPI_Request_free(&part_sum);
    free_in_any_order();
    if (rank == 1 || rank == 3) MPI_Comm_free(&part);
    if (rank > 0) MPI_Comm_free(&late); /* one member never frees it */
}

static void set_up(void) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    total = size * (size + 1) / 2;
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(constructors), STATE(names),  STATE(idup),  STATE(handlers),
        STATE(many),         STATE(groups), STATE(freed), STATE(wrong),
    };
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}
