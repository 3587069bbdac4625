/* Topologies: every function of the family [topo], and the collectives among neighbours in all their forms. See
 * checkpointed.h and test_surface.py; 4 ranks. */
#include "../../mpi_states.h"

static int kind_of(MPI_Comm comm) {
    int kind = -1;
    MPI_Topo_test(comm, &kind);
    return kind;
}

static int same(int n, const int *a, const int *b) { return memcmp(a, b, (size_t)n * sizeof *a) == 0; }

/* ---- Cartesian ---- */

static MPI_Comm grid, reordered, line, point, ring, copied, rows, columns, everything, nothing;
static int own[2]; /* coordinates before the checkpoint in `reordered` */

static void cartesian_set_up(void) {
    int dims[2] = {0, 2}, periods[2] = {1, 0}, three = 3, keep_rows[2] = {0, 1}, keep_columns[2] = {1, 0},
        both[2] = {1, 1}, none[2] = {0, 0}, n, r;
    MPI_Dims_create(4, 2, dims);
    CHECK(dims[0] == 2);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &reordered);
    MPI_Cart_get(reordered, 2, dims, periods, own);
    MPI_Cart_create(MPI_COMM_WORLD, 1, &three, &periods[1], 0, &line);
    CHECK((line == MPI_COMM_NULL) == (rank == 3));
    MPI_Cart_create(MPI_COMM_WORLD, 0, NULL, NULL, 0, &point);
    CHECK((point == MPI_COMM_NULL) == (rank != 0));
    n = 4;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &n, &periods[0], 0, &ring);
    MPI_Comm_dup(grid, &copied);
    MPI_Cart_sub(grid, keep_rows, &rows);
    MPI_Cart_sub(grid, keep_columns, &columns);
    MPI_Cart_sub(grid, both, &everything);
    MPI_Cart_sub(grid, none, &nothing);
    MPI_Cart_map(MPI_COMM_WORLD, 2, dims, periods, &r);
    CHECK(r >= 0 && r < 4);
    MPI_Comm_set_name(grid, "the grid");
}

static void is_grid(MPI_Comm comm) {
    int n, dims[2], periods[2], coords[2], from, to;
    MPI_Cartdim_get(comm, &n);
    MPI_Cart_get(comm, 2, dims, periods, coords);
    CHECK(kind_of(comm) == MPI_CART && n == 2 && same(2, dims, (int[]){2, 2}) && same(2, periods, (int[]){1, 0}));
    CHECK(same(2, coords, (int[]){rank / 2, rank % 2}));
    MPI_Cart_coords(comm, 3 - rank, 2, coords);
    CHECK(same(2, coords, (int[]){1 - rank / 2, 1 - rank % 2}));
    MPI_Cart_rank(comm, (int[]){-1, 1}, &n); /* the first dimension is periodic */
    CHECK(n == 3);
    MPI_Cart_shift(comm, 0, 1, &from, &to);
    CHECK(from == (rank + 2) % 4 && to == from);
    MPI_Cart_shift(comm, 1, 1, &from, &to);
    CHECK(from == (rank % 2 ? rank - 1 : MPI_PROC_NULL) && to == (rank % 2 ? MPI_PROC_NULL : rank + 1));
}

static void cartesian_check(void) {
    int n, r, dims[2], periods[2], coords[2];
    char name[MPI_MAX_OBJECT_NAME];
    is_grid(grid);
    is_grid(copied);
    is_grid(everything);
    MPI_Comm_get_name(grid, name, &n);
    CHECK(!strcmp(name, "the grid"));
    MPI_Cart_get(reordered, 2, dims, periods, coords);
    CHECK(same(2, dims, (int[]){2, 2}) && same(2, coords, own));
    MPI_Cart_get(rows, 1, dims, periods, coords);
    CHECK(kind_of(rows) == MPI_CART && dims[0] == 2 && periods[0] == 0 && coords[0] == rank % 2);
    MPI_Cart_get(columns, 1, dims, periods, coords);
    CHECK(dims[0] == 2 && periods[0] == 1 && coords[0] == rank / 2);
    MPI_Allreduce(&rank, &n, 1, MPI_INT, MPI_SUM, columns);
    CHECK(n == 2 + 2 * (rank % 2));
    MPI_Cartdim_get(nothing, &n);
    MPI_Comm_size(nothing, &r);
    CHECK(kind_of(nothing) == MPI_CART && n == 0 && r == 1);
    if (rank == 0) {
        MPI_Cartdim_get(point, &n);
        CHECK(kind_of(point) == MPI_CART && n == 0);
        MPI_Comm_free(&point);
    }
    if (rank < 3) {
        MPI_Cart_get(line, 1, dims, periods, coords);
        CHECK(dims[0] == 3 && periods[0] == 0 && coords[0] == rank);
        MPI_Comm_free(&line);
    }
    MPI_Cart_shift(ring, 0, 1, &n, &r);
    CHECK(n == (rank + 3) % 4 && r == (rank + 1) % 4);
    MPI_Comm late;
    MPI_Cart_sub(copied, (int[]){0, 1}, &late); /* of a duplicate, in the restarted job */
    MPI_Comm_compare(late, rows, &n);
    CHECK(n == MPI_CONGRUENT);
    MPI_Comm *all[] = {&late, &grid, &reordered, &ring, &copied, &rows, &columns, &everything, &nothing};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) MPI_Comm_free(all[i]);
}

/* ---- graph: 0 - 1, 0 - 3, 2 - 3, and an edge of 3 to itself ---- */

static const int nodes[4] = {2, 3, 4, 7}, edges[7] = {1, 3, 0, 3, 0, 2, 3};
static MPI_Comm graph, graph_copy;

static void graph_set_up(void) {
    int r;
    MPI_Graph_create(MPI_COMM_WORLD, 4, nodes, edges, 0, &graph);
    MPI_Comm_dup(graph, &graph_copy);
    MPI_Graph_map(MPI_COMM_WORLD, 4, nodes, edges, &r);
    CHECK(r >= 0 && r < 4);
}

static void graph_check(void) {
    int n, m, index[4], all[7], neighbours[3];
    MPI_Comm both[2] = {graph, graph_copy};
    for (int i = 0; i < 2; i++) {
        MPI_Graphdims_get(both[i], &n, &m);
        MPI_Graph_get(both[i], 4, 7, index, all);
        CHECK(kind_of(both[i]) == MPI_GRAPH && n == 4 && m == 7 && same(4, index, nodes) && same(7, all, edges));
        MPI_Graph_neighbors_count(both[i], 3, &n);
        MPI_Graph_neighbors(both[i], 3, 3, neighbours);
        CHECK(n == 3 && same(3, neighbours, edges + 4));
    }
    MPI_Comm_free(&graph);
    MPI_Comm_free(&graph_copy);
}

/* ---- distributed graphs ---- */

static MPI_Comm adjacent, weighted, isolated, anywhere, anywhere_weighted, adjacent_copy;
static int sources[2], targets[3], in_weights[2], out_weights[3];

/* Each rank receives from the next one twice, and sends to the one before twice; rank 0 sends to 2 besides. */
static int indegree(void) { return rank == 2 ? 3 : 2; }
static int outdegree(void) { return rank == 0 ? 3 : 2; }

static void distributed_set_up(void) {
    int ins[3] = {(rank + 1) % 4, (rank + 1) % 4, 0}, outs[3] = {(rank + 3) % 4, (rank + 3) % 4, 2};
    int in_w[3] = {10 * rank, 10 * rank + 1, 99}, out_w[3] = {10 * ((rank + 3) % 4), 10 * ((rank + 3) % 4) + 1, 99};
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, indegree(), ins, MPI_UNWEIGHTED, outdegree(), outs, MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &adjacent);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, indegree(), ins, in_w, outdegree(), outs, out_w, MPI_INFO_NULL, 0,
                                   &weighted);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 0, NULL, MPI_WEIGHTS_EMPTY, 0, NULL, MPI_WEIGHTS_EMPTY,
                                   MPI_INFO_NULL, 0, &isolated);
    /* anybody may tell of any edge: rank 1 tells of all of them but its own */
    int from[4] = {0, 2, 3, 0}, degrees[4] = {1, 1, 2, 1}, to[5] = {1, 3, 0, 2, 3}, weights[5] = {5, 6, 7, 8, 9},
        one = 1, zero = 0, nine = 9;
    if (rank == 1) {
        MPI_Dist_graph_create(MPI_COMM_WORLD, 4, from, degrees, to, MPI_UNWEIGHTED, MPI_INFO_NULL, 1, &anywhere);
        MPI_Dist_graph_create(MPI_COMM_WORLD, 4, from, degrees, to, weights, MPI_INFO_NULL, 0, &anywhere_weighted);
    } else if (rank == 2) {
        MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &one, &one, &zero, MPI_UNWEIGHTED, MPI_INFO_NULL, 1, &anywhere);
        MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &one, &one, &zero, &nine, MPI_INFO_NULL, 0, &anywhere_weighted);
    } else {
        MPI_Dist_graph_create(MPI_COMM_WORLD, 0, NULL, NULL, NULL, MPI_UNWEIGHTED, MPI_INFO_NULL, 1, &anywhere);
        MPI_Dist_graph_create(MPI_COMM_WORLD, 0, NULL, NULL, NULL, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, 0,
                              &anywhere_weighted);
    }
    MPI_Comm_dup(weighted, &adjacent_copy);
    int in, out, has;
    MPI_Dist_graph_neighbors_count(anywhere_weighted, &in, &out, &has);
    CHECK(has && in <= 2 && out <= 2);
    /* in which order is MPI's affair, but it stays */
    MPI_Dist_graph_neighbors(anywhere_weighted, 2, sources, in_weights, 2, targets, out_weights);
}

static void distributed_check(void) {
    int in, out, has, from[3], to[3], in_w[3] = {-1, -1, -1}, out_w[3] = {-1, -1, -1};
    MPI_Comm three[3] = {adjacent, weighted, adjacent_copy};
    for (int i = 0; i < 3; i++) {
        MPI_Dist_graph_neighbors_count(three[i], &in, &out, &has);
        CHECK(kind_of(three[i]) == MPI_DIST_GRAPH && in == indegree() && out == outdegree() && has == (i > 0));
        MPI_Dist_graph_neighbors(three[i], 3, from, i ? in_w : MPI_UNWEIGHTED, 3, to, i ? out_w : MPI_UNWEIGHTED);
        CHECK(from[0] == (rank + 1) % 4 && from[1] == from[0] && to[0] == (rank + 3) % 4 && to[1] == to[0]);
        CHECK((rank != 0 || to[2] == 2) && (rank != 2 || from[2] == 0));
        if (i == 0) continue;
        CHECK(in_w[0] == 10 * rank && in_w[1] == 10 * rank + 1 && out_w[0] == 10 * to[0] && out_w[1] == 10 * to[0] + 1);
        CHECK((rank != 0 || out_w[2] == 99) && (rank != 2 || in_w[2] == 99));
    }
    MPI_Dist_graph_neighbors_count(isolated, &in, &out, &has);
    CHECK(in == 0 && out == 0 && has == 1);
    MPI_Dist_graph_neighbors_count(anywhere, &in, &out, &has);
    CHECK(kind_of(anywhere) == MPI_DIST_GRAPH && has == 0);
    MPI_Dist_graph_neighbors_count(anywhere_weighted, &in, &out, &has);
    MPI_Dist_graph_neighbors(anywhere_weighted, 2, from, in_w, 2, to, out_w);
    CHECK(has && same(in, from, sources) && same(in, in_w, in_weights) && same(out, to, targets) &&
          same(out, out_w, out_weights));
    CHECK(in == (rank == 0 || rank == 3 ? 2 : 1) && out == (rank == 0 || rank == 3 ? 2 : 1));
    MPI_Comm *all[] = {&adjacent, &weighted, &adjacent_copy, &isolated, &anywhere, &anywhere_weighted};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) MPI_Comm_free(all[i]);
}

/* ---- collectives among neighbours ---- */

enum { MOST = 3 };
static MPI_Comm neighbours;
/* Cartesian ring, graph ring, distributed ring: from and to the rank before, then the next one */
static MPI_Comm kinds[3];

static void neighbourhoods_set_up(void) {
    int four = 4, yes = 1, index[4] = {2, 4, 6, 8}, ring_edges[8] = {3, 1, 0, 2, 1, 3, 2, 0},
        ins[2] = {(rank + 3) % 4, (rank + 1) % 4};
    MPI_Cart_create(MPI_COMM_WORLD, 1, &four, &yes, 0, &kinds[0]);
    MPI_Graph_create(MPI_COMM_WORLD, 4, index, ring_edges, 0, &kinds[1]);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, ins, MPI_UNWEIGHTED, 2, ins, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                   &kinds[2]);
    /* a star: rank 0 has three neighbours, the others one */
    int all[3] = {1, 2, 3}, zero[2] = {0, 0};
    if (rank == 0)
        MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 3, all, MPI_UNWEIGHTED, 3, all, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                       &neighbours);
    else
        MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, zero, MPI_UNWEIGHTED, 1, zero, MPI_UNWEIGHTED, MPI_INFO_NULL,
                                       0, &neighbours);
}

typedef struct buffers { int out[MOST], in[MOST]; } buffers_t;
static const int ones[MOST] = {1, 1, 1}, at[MOST] = {0, 1, 2};
static const MPI_Count ones_c[MOST] = {1, 1, 1};
static const MPI_Aint at_c[MOST] = {0, 1, 2}, bytes_at[MOST] = {0, 4, 8};
static const MPI_Datatype ints[MOST] = {MPI_INT, MPI_INT, MPI_INT};

static buffers_t filled(void) { return (buffers_t){{10 * rank, 10 * rank + 1, 10 * rank + 2}, {-1, -1, -1}}; }

/* What has come on a ring: of an alltoall, the one before had for us its second element, the next one its first. With a
 * Cartesian ring of MPI the neighbours are the same. */
static void ring_gathered(const buffers_t *b) {
    CHECK(b->in[0] == 10 * ((rank + 3) % 4) && b->in[1] == 10 * ((rank + 1) % 4) && b->in[2] == -1);
}
static void ring_exchanged(const buffers_t *b) {
    CHECK(b->in[0] == 10 * ((rank + 3) % 4) + 1 && b->in[1] == 10 * ((rank + 1) % 4) && b->in[2] == -1);
}
static void star_gathered(const buffers_t *b) {
    if (rank == 0)
        CHECK(same(3, b->in, (int[]){10, 20, 30}));
    else
        CHECK(same(3, b->in, (int[]){0, -1, -1}));
}
static void star_exchanged(const buffers_t *b) {
    if (rank == 0)
        CHECK(same(3, b->in, (int[]){10, 20, 30}));
    else
        CHECK(same(3, b->in, (int[]){rank - 1, -1, -1}));
}

typedef struct expected { void (*gathered)(const buffers_t *), (*exchanged)(const buffers_t *); } expected_t;

static void blocking(MPI_Comm comm, expected_t e) {
    buffers_t b = filled();
    MPI_Neighbor_allgather(b.out, 1, MPI_INT, b.in, 1, MPI_INT, comm);
    e.gathered(&b), b = filled();
    MPI_Neighbor_allgather_c(b.out, 1, MPI_INT, b.in, 1, MPI_INT, comm);
    e.gathered(&b), b = filled();
    MPI_Neighbor_allgatherv(b.out, 1, MPI_INT, b.in, ones, at, MPI_INT, comm);
    e.gathered(&b), b = filled();
    MPI_Neighbor_allgatherv_c(b.out, 1, MPI_INT, b.in, ones_c, at_c, MPI_INT, comm);
    e.gathered(&b), b = filled();
    MPI_Neighbor_alltoall(b.out, 1, MPI_INT, b.in, 1, MPI_INT, comm);
    e.exchanged(&b), b = filled();
    MPI_Neighbor_alltoall_c(b.out, 1, MPI_INT, b.in, 1, MPI_INT, comm);
    e.exchanged(&b), b = filled();
    MPI_Neighbor_alltoallv(b.out, ones, at, MPI_INT, b.in, ones, at, MPI_INT, comm);
    e.exchanged(&b), b = filled();
    MPI_Neighbor_alltoallv_c(b.out, ones_c, at_c, MPI_INT, b.in, ones_c, at_c, MPI_INT, comm);
    e.exchanged(&b), b = filled();
    MPI_Neighbor_alltoallw(b.out, ones, bytes_at, ints, b.in, ones, bytes_at, ints, comm);
    e.exchanged(&b), b = filled();
    MPI_Neighbor_alltoallw_c(b.out, ones_c, bytes_at, ints, b.in, ones_c, bytes_at, ints, comm);
    e.exchanged(&b);
}

enum { FORMS = 10 };
typedef struct started { buffers_t b[FORMS]; MPI_Request q[FORMS]; } started_t;

static void start(MPI_Comm comm, started_t *s) {
    MPI_Request *q = s->q;
    for (int i = 0; i < FORMS; i++) s->b[i] = filled();
    buffers_t *b = s->b;
    MPI_Ineighbor_allgather(b[0].out, 1, MPI_INT, b[0].in, 1, MPI_INT, comm, &q[0]);
    MPI_Ineighbor_allgather_c(b[1].out, 1, MPI_INT, b[1].in, 1, MPI_INT, comm, &q[1]);
    MPI_Ineighbor_allgatherv(b[2].out, 1, MPI_INT, b[2].in, ones, at, MPI_INT, comm, &q[2]);
    MPI_Ineighbor_allgatherv_c(b[3].out, 1, MPI_INT, b[3].in, ones_c, at_c, MPI_INT, comm, &q[3]);
    MPI_Ineighbor_alltoall(b[4].out, 1, MPI_INT, b[4].in, 1, MPI_INT, comm, &q[4]);
    MPI_Ineighbor_alltoall_c(b[5].out, 1, MPI_INT, b[5].in, 1, MPI_INT, comm, &q[5]);
    MPI_Ineighbor_alltoallv(b[6].out, ones, at, MPI_INT, b[6].in, ones, at, MPI_INT, comm, &q[6]);
    MPI_Ineighbor_alltoallv_c(b[7].out, ones_c, at_c, MPI_INT, b[7].in, ones_c, at_c, MPI_INT, comm, &q[7]);
    MPI_Ineighbor_alltoallw(b[8].out, ones, bytes_at, ints, b[8].in, ones, bytes_at, ints, comm, &q[8]);
    MPI_Ineighbor_alltoallw_c(b[9].out, ones_c, bytes_at, ints, b[9].in, ones_c, bytes_at, ints, comm, &q[9]);
}

static void finish(started_t *s, expected_t e) {
    MPI_Waitall(FORMS, s->q, MPI_STATUSES_IGNORE);
    for (int i = 0; i < FORMS; i++) (i < 4 ? e.gathered : e.exchanged)(&s->b[i]);
}

static void neighbourhoods_check(void) {
    static started_t s;
    for (int i = 0; i < 3; i++) {
        expected_t ring_expected = {ring_gathered, ring_exchanged};
        blocking(kinds[i], ring_expected);
        start(kinds[i], &s);
        finish(&s, ring_expected);
    }
    expected_t star_expected = {star_gathered, star_exchanged};
    blocking(neighbours, star_expected);
    start(neighbours, &s);
    finish(&s, star_expected);
    for (int i = 0; i < 3; i++) MPI_Comm_free(&kinds[i]);
    MPI_Comm_free(&neighbours);
}

/* ---- nonblocking ones that are open at the checkpoint ---- */

static MPI_Comm opened;
static started_t open_ones;

static void open_set_up(void) {
    int ins[2] = {(rank + 3) % 4, (rank + 1) % 4};
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, ins, MPI_UNWEIGHTED, 2, ins, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                   &opened);
    start(opened, &open_ones);
}

static void open_check(void) {
    finish(&open_ones, (expected_t){ring_gathered, ring_exchanged});
    MPI_Comm_free(&opened);
}

/* ---- nonblocking duplicates of topologies ---- */

static MPI_Comm idups[3];
static MPI_Request idup_requests[3];

static void idup_set_up(void) {
    MPI_Comm from[3];
    int dims[2] = {2, 2}, periods[2] = {1, 0}, ins[2] = {(rank + 3) % 4, (rank + 1) % 4};
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &from[0]);
    MPI_Graph_create(MPI_COMM_WORLD, 4, nodes, edges, 0, &from[1]);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, ins, MPI_UNWEIGHTED, 2, ins, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                   &from[2]);
    for (int i = 0; i < 3; i++) MPI_Comm_idup(from[i], &idups[i], &idup_requests[i]);
}

static void idup_check(void) {
    int index[4], all[7];
    MPI_Waitall(3, idup_requests, MPI_STATUSES_IGNORE);
    is_grid(idups[0]);
    MPI_Graph_get(idups[1], 4, 7, index, all);
    CHECK(same(4, index, nodes) && same(7, all, edges));
    blocking(idups[2], (expected_t){ring_gathered, ring_exchanged});
    for (int i = 0; i < 3; i++) MPI_Comm_free(&idups[i]);
}

/* ---- wrong arguments ---- */

static void wrong_set_up(void) {}

static void wrong_check(void) {
    int n = 0, m = 0, two[2] = {2, 2}, big[2] = {3, 3}, periods[2] = {0, 0}, buffer[8] = {0};
    MPI_Comm result, cart;
    CHECK(kind_of(MPI_COMM_WORLD) == MPI_UNDEFINED);
    CHECK(class_of(MPI_Cart_create(MPI_COMM_NULL, 2, two, periods, 0, &result)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Cart_create(MPI_COMM_WORLD, 2, big, periods, 0, &result)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Cart_coords(MPI_COMM_WORLD, 0, 2, buffer)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Cart_rank(MPI_COMM_WORLD, buffer, &n)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Cart_shift(MPI_COMM_WORLD, 0, 1, &n, &m)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Cart_sub(MPI_COMM_WORLD, two, &result)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Cartdim_get(MPI_COMM_WORLD, &n)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Graph_get(MPI_COMM_WORLD, 1, 1, &n, &m)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Graphdims_get(MPI_COMM_WORLD, &n, &m)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Graph_create(MPI_COMM_WORLD, 5, nodes, edges, 0, &result)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Dist_graph_neighbors_count(MPI_COMM_WORLD, &n, &m, &n)) == MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, -1, NULL, MPI_UNWEIGHTED, 0, NULL, MPI_UNWEIGHTED,
                                                  MPI_INFO_NULL, 0, &result)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Dims_create(4, 2, (int[]){3, 0})) == MPI_ERR_DIMS);
    CHECK(class_of(MPI_Topo_test(MPI_COMM_NULL, &n)) == MPI_ERR_COMM);
    CHECK_IN_MPICH(class_of(MPI_Neighbor_allgather(&rank, 1, MPI_INT, buffer, 1, MPI_INT, MPI_COMM_WORLD)) ==
                   MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Neighbor_alltoallw(&rank, ones, bytes_at, ints, buffer, ones, bytes_at, ints, MPI_COMM_NULL)) ==
          MPI_ERR_COMM);
    MPI_Cart_create(MPI_COMM_WORLD, 2, two, periods, 0, &cart);
    CHECK_IN_MPICH(class_of(MPI_Cart_coords(cart, 0, 1, buffer)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Cart_coords(cart, 9, 2, buffer)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Cart_rank(cart, big, &n)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Graphdims_get(cart, &n, &m)) == MPI_ERR_TOPOLOGY);
    MPI_Comm_free(&cart);
}

static void set_up(void) { MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); }

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(cartesian), STATE(graph), STATE(distributed), STATE(neighbourhoods),
        STATE(open),      STATE(idup),  STATE(wrong),
    };
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}
