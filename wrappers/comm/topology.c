/* topology.c - Cartesian, graph and distributed-graph topologies: constructors, and recipes to make them again.
 *
 * Upper half, no libc. Generated wrappers forward queries to the real communicator. The communicator's group keeps the
 * ranks that a reordering assigned, so a recipe is applied without reordering.
 *
 * Invariants
 *  1. A recipe is the real communicator's answer to a query, whatever call made the communicator (a constructor,
 *     Comm_dup, Cart_sub), in the order of the answer: the order of neighbours is part of the topology.
 */
#include "comm.h"

struct mpy_topology {
    int kind;
    /* MPI_CART: dimensions, -; MPI_GRAPH: nodes, edges; MPI_DIST_GRAPH: neighbours to receive from, to send to */
    int n, m;
    int weighted;
    size_t bytes; /* of the whole structure */
    int values[]; /* dims, periods | index, edges | sources, their weights, destinations, their weights */
};

static mpy_topology_t *blank(int kind, int n, int m, int nvalues) {
    size_t bytes = sizeof(mpy_topology_t) + (size_t)nvalues * sizeof(int);
    mpy_topology_t *topology = mpy_alloc(bytes);
    *topology = (mpy_topology_t){.kind = kind, .n = n, .m = m, .bytes = bytes};
    return topology;
}

mpy_topology_t *mpy_topology_copy(const mpy_topology_t *from) {
    return from == NULL ? NULL : __builtin_memcpy(mpy_alloc(from->bytes), from, from->bytes);
}

void mpy_topology_free(mpy_topology_t *topology) {
    if (topology != NULL) mpy_free(topology, topology->bytes);
}

/* ---- reading ---- */

static mpy_topology_t *read_cart(mpy_comm_t *c) {
    int n;
    MPY_REAL(Cartdim_get)(c->obj.real, &n);
    mpy_topology_t *topology = blank(MPI_CART, n, 0, 3 * n); /* MPI also returns this process's coordinates */
    MPY_REAL(Cart_get)(c->obj.real, n, topology->values, topology->values + n, topology->values + 2 * n);
    c->indegree = c->outdegree = 2 * n;
    return topology;
}

static mpy_topology_t *read_graph(mpy_comm_t *c) {
    int nodes, edges;
    MPY_REAL(Graphdims_get)(c->obj.real, &nodes, &edges);
    mpy_topology_t *topology = blank(MPI_GRAPH, nodes, edges, nodes + edges);
    MPY_REAL(Graph_get)(c->obj.real, nodes, edges, topology->values, topology->values + nodes);
    MPY_REAL(Graph_neighbors_count)(c->obj.real, c->rank, &c->indegree);
    c->outdegree = c->indegree;
    return topology;
}

static mpy_topology_t *read_dist_graph(mpy_comm_t *c) {
    int in, out, weighted;
    MPY_REAL(Dist_graph_neighbors_count)(c->obj.real, &in, &out, &weighted);
    mpy_topology_t *topology = blank(MPI_DIST_GRAPH, in, out, 2 * (in + out));
    topology->weighted = weighted;
    int *v = topology->values;
    MPY_REAL(Dist_graph_neighbors)(c->obj.real, in, v, v + in, out, v + 2 * in, v + 2 * in + out);
    c->indegree = in;
    c->outdegree = out;
    return topology;
}

void mpy_topology_read(mpy_comm_record_t *r) {
    mpy_comm_t *c = &r->comm;
    MPY_REAL(Topo_test)(c->obj.real, &c->topology);
    if (c->topology == MPI_CART) r->topology = read_cart(c);
    if (c->topology == MPI_GRAPH) r->topology = read_graph(c);
    if (c->topology == MPI_DIST_GRAPH) r->topology = read_dist_graph(c);
}

/* ---- rebuilding ---- */

int mpy_topology_rebuild(const mpy_topology_t *topology, int base, int *real) {
    const int *v = topology->values, n = topology->n, m = topology->m;
    if (topology->kind == MPI_CART) return MPY_REAL(Cart_create)(base, n, v, v + n, 0, real);
    if (topology->kind == MPI_GRAPH) return MPY_REAL(Graph_create)(base, n, v, v + n, 0, real);
    const int *in_weights = v + n, *out_weights = v + 2 * n + m;
    if (!topology->weighted) in_weights = out_weights = MPY_LOWER->mpi_data[MPY_DATA_UNWEIGHTED];
    return MPY_REAL(Dist_graph_create_adjacent)(base, n, v, in_weights, m, v + 2 * n, out_weights, MPI_INFO_NULL, 0,
                                                real);
}

/* ---- constructors ---- */

int PMPI_Cart_create(MPI_Comm comm_old, int ndims, const int dims[], const int periods[], int reorder,
                     MPI_Comm *comm_cart) {
    mpy_construction_t k = mpy_construct_begin(comm_old);
    k.rc = MPY_REAL(Cart_create)(mpy_real_comm(comm_old), ndims, dims, periods, reorder, &k.real);
    return mpy_construct_end(&k, comm_cart, "MPI_Cart_create");
}

int PMPI_Cart_sub(MPI_Comm comm, const int remain_dims[], MPI_Comm *newcomm) {
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Cart_sub)(mpy_real_comm(comm), remain_dims, &k.real);
    return mpy_construct_end(&k, newcomm, "MPI_Cart_sub");
}

int PMPI_Graph_create(MPI_Comm comm_old, int nnodes, const int indx[], const int edges[], int reorder,
                      MPI_Comm *comm_graph) {
    mpy_construction_t k = mpy_construct_begin(comm_old);
    k.rc = MPY_REAL(Graph_create)(mpy_real_comm(comm_old), nnodes, indx, edges, reorder, &k.real);
    return mpy_construct_end(&k, comm_graph, "MPI_Graph_create");
}

int PMPI_Dist_graph_create(MPI_Comm comm_old, int n, const int sources[], const int degrees[], const int destinations[],
                           const int weights[], MPI_Info info, int reorder, MPI_Comm *comm_dist_graph) {
    mpy_construction_t k = mpy_construct_begin(comm_old);
    k.rc = MPY_REAL(Dist_graph_create)(mpy_real_comm(comm_old), n, sources, degrees, destinations,
                                       mpy_real_weights(weights), mpy_real_info(info), reorder, &k.real);
    return mpy_construct_end(&k, comm_dist_graph, "MPI_Dist_graph_create");
}

int PMPI_Dist_graph_create_adjacent(MPI_Comm comm_old, int indegree, const int sources[], const int sourceweights[],
                                    int outdegree, const int destinations[], const int destweights[], MPI_Info info,
                                    int reorder, MPI_Comm *comm_dist_graph) {
    mpy_construction_t k = mpy_construct_begin(comm_old);
    k.rc = MPY_REAL(Dist_graph_create_adjacent)(mpy_real_comm(comm_old), indegree, sources,
                                                mpy_real_weights(sourceweights), outdegree, destinations,
                                                mpy_real_weights(destweights), mpy_real_info(info), reorder, &k.real);
    return mpy_construct_end(&k, comm_dist_graph, "MPI_Dist_graph_create_adjacent");
}
