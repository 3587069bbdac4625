/* Datatypes: every constructor, question, and way to pack, in both forms; questions of operations. See four_ranks.h.
 *
 *     STATE_GO=FILE mpirun -n 4 manapy-launch surface_datatypes [STATE...]
 *
 * A row of `shapes` holds the arguments of one constructor as MPI_Type_get_contents has to return them, and the places
 * of the type's ints. All expected results of the type are computed from the row.
 */
#include "../four_ranks.h"

#include <arpa/inet.h>

enum { LONGEST = 12, ELEMENTS = 2, SPAN = 40, ROOM = 64 };

typedef struct { int n; MPI_Count at[LONGEST]; } list_t;
#define LIST(...) {sizeof((MPI_Count[]){__VA_ARGS__}) / sizeof(MPI_Count), {__VA_ARGS__}}

typedef struct {
    int combiner;
    const char *types; /* I: MPI_INT, S: `steps` */
    list_t ints, aints, counts, where; /* where: the ints of one element, in order */
    int lb, extent; /* in ints */
} shape_t;

enum {
    DUP,
    CONTIGUOUS,
    CONTIGUOUS_C,
    VECTOR,
    VECTOR_C,
    HVECTOR,
    OLD_HVECTOR,
    HVECTOR_C,
    INDEXED,
    INDEXED_C,
    HINDEXED,
    OLD_HINDEXED,
    HINDEXED_C,
    INDEXED_BLOCK,
    INDEXED_BLOCK_C,
    HINDEXED_BLOCK,
    HINDEXED_BLOCK_C,
    STRUCT,
    OLD_STRUCT,
    STRUCT_C,
    RESIZED,
    RESIZED_C,
    SUBARRAY,
    SUBARRAY_C,
    DARRAY,
    DARRAY_C,
    SHAPES
};

static const shape_t shapes[SHAPES] = {
    [DUP] = {MPI_COMBINER_DUP, "S", .where = LIST(0, 2), .extent = 3},
    [CONTIGUOUS] = {MPI_COMBINER_CONTIGUOUS, "I", .ints = LIST(3), .where = LIST(0, 1, 2), .extent = 3},
    [CONTIGUOUS_C] = {MPI_COMBINER_CONTIGUOUS, "S", .counts = LIST(2), .where = LIST(0, 2, 3, 5), .extent = 6},
    [VECTOR] = {MPI_COMBINER_VECTOR, "I", .ints = LIST(2, 2, 3), .where = LIST(0, 1, 3, 4), .extent = 5},
    [VECTOR_C] = {MPI_COMBINER_VECTOR, "I", .counts = LIST(2, 1, -3), .where = LIST(0, -3), .lb = -3, .extent = 4},
    [HVECTOR] = {MPI_COMBINER_HVECTOR, "I", .ints = LIST(2, 1), .aints = LIST(12), .where = LIST(0, 3), .extent = 4},
    [OLD_HVECTOR] = {MPI_COMBINER_HVECTOR, "I", .ints = LIST(2, 1), .aints = LIST(16), .where = LIST(0, 4),
                     .extent = 5},
    [HVECTOR_C] = {MPI_COMBINER_HVECTOR, "S", .counts = LIST(2, 1, 4), .where = LIST(0, 2, 1, 3), .extent = 4},
    [INDEXED] = {MPI_COMBINER_INDEXED, "I", .ints = LIST(2, 2, 1, 3, 0), .where = LIST(3, 4, 0), .extent = 5},
    [INDEXED_C] = {MPI_COMBINER_INDEXED, "I", .counts = LIST(2, 1, 2, 5, 1), .where = LIST(5, 1, 2), .lb = 1,
                   .extent = 5},
    [HINDEXED] = {MPI_COMBINER_HINDEXED, "I", .ints = LIST(2, 1, 2), .aints = LIST(16, 0), .where = LIST(4, 0, 1),
                  .extent = 5},
    [OLD_HINDEXED] = {MPI_COMBINER_HINDEXED, "I", .ints = LIST(2, 2, 1), .aints = LIST(0, 20), .where = LIST(0, 1, 5),
                      .extent = 6},
    [HINDEXED_C] = {MPI_COMBINER_HINDEXED, "I", .counts = LIST(2, 1, 2, 12, 0), .where = LIST(3, 0, 1), .extent = 4},
    [INDEXED_BLOCK] = {MPI_COMBINER_INDEXED_BLOCK, "I", .ints = LIST(3, 1, 5, 0, 2), .where = LIST(5, 0, 2),
                       .extent = 6},
    [INDEXED_BLOCK_C] = {MPI_COMBINER_INDEXED_BLOCK, "I", .counts = LIST(2, 2, 3, 0), .where = LIST(3, 4, 0, 1),
                         .extent = 5},
    [HINDEXED_BLOCK] = {MPI_COMBINER_HINDEXED_BLOCK, "I", .ints = LIST(2, 2), .aints = LIST(12, 0),
                        .where = LIST(3, 4, 0, 1), .extent = 5},
    [HINDEXED_BLOCK_C] = {MPI_COMBINER_HINDEXED_BLOCK, "I", .counts = LIST(3, 1, 8, 4, 20), .where = LIST(2, 1, 5),
                          .lb = 1, .extent = 5},
    [STRUCT] = {MPI_COMBINER_STRUCT, "IS", .ints = LIST(2, 1, 1), .aints = LIST(4, 12), .where = LIST(1, 3, 5), .lb = 1,
                .extent = 5},
    [OLD_STRUCT] = {MPI_COMBINER_STRUCT, "SI", .ints = LIST(2, 1, 2), .aints = LIST(0, 16), .where = LIST(0, 2, 4, 5),
                    .extent = 6},
    [STRUCT_C] = {MPI_COMBINER_STRUCT, "IS", .counts = LIST(2, 2, 1, 12, 0), .where = LIST(3, 4, 0, 2), .extent = 5},
    [RESIZED] = {MPI_COMBINER_RESIZED, "S", .aints = LIST(-8, 24), .where = LIST(0, 2), .lb = -2, .extent = 6},
    [RESIZED_C] = {MPI_COMBINER_RESIZED, "I", .counts = LIST(-4, 12), .where = LIST(0), .lb = -1, .extent = 3},
    [SUBARRAY] = {MPI_COMBINER_SUBARRAY, "I", .ints = LIST(2, 3, 4, 2, 2, 1, 1, MPI_ORDER_FORTRAN),
                  .where = LIST(4, 5, 7, 8), .extent = 12},
    [SUBARRAY_C] = {MPI_COMBINER_SUBARRAY, "I", .ints = LIST(2, MPI_ORDER_C), .counts = LIST(3, 4, 2, 2, 1, 1),
                    .where = LIST(5, 6, 9, 10), .extent = 12},
    [DARRAY] = {MPI_COMBINER_DARRAY, "I",
                .ints = LIST(4, 3, 2, 4, 4, MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_DFLT_DARG, 1, 2,
                             2, MPI_ORDER_C),
                .where = LIST(9, 11, 13, 15), .extent = 16},
    [DARRAY_C] = {MPI_COMBINER_DARRAY, "I",
                  .ints = LIST(2, 1, 2, MPI_DISTRIBUTE_NONE, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_DFLT_DARG, 1, 1, 2,
                               MPI_ORDER_FORTRAN),
                  .counts = LIST(2, 4), .where = LIST(2, 3, 6, 7), .extent = 8},
};

static int construct(int shape, const MPI_Datatype *types, MPI_Datatype *type) {
    const shape_t *s = &shapes[shape];
    const MPI_Count *c = s->counts.at;
    MPI_Datatype old = types[0], several[2] = {types[0], types[1]};
    MPI_Aint a[LONGEST];
    int i[LONGEST];
    for (int k = 0; k < LONGEST; k++) i[k] = (int)s->ints.at[k], a[k] = (MPI_Aint)s->aints.at[k];
    switch (shape) {
    case DUP: return MPI_Type_dup(old, type);
    case CONTIGUOUS: return MPI_Type_contiguous(i[0], old, type);
    case CONTIGUOUS_C: return MPI_Type_contiguous_c(c[0], old, type);
    case VECTOR: return MPI_Type_vector(i[0], i[1], i[2], old, type);
    case VECTOR_C: return MPI_Type_vector_c(c[0], c[1], c[2], old, type);
    case HVECTOR: return MPI_Type_create_hvector(i[0], i[1], a[0], old, type);
    case OLD_HVECTOR: return MPI_Type_hvector(i[0], i[1], a[0], old, type);
    case HVECTOR_C: return MPI_Type_create_hvector_c(c[0], c[1], c[2], old, type);
    case INDEXED: return MPI_Type_indexed(i[0], i + 1, i + 3, old, type);
    case INDEXED_C: return MPI_Type_indexed_c(c[0], c + 1, c + 3, old, type);
    case HINDEXED: return MPI_Type_create_hindexed(i[0], i + 1, a, old, type);
    case OLD_HINDEXED: return MPI_Type_hindexed(i[0], i + 1, a, old, type);
    case HINDEXED_C: return MPI_Type_create_hindexed_c(c[0], c + 1, c + 3, old, type);
    case INDEXED_BLOCK: return MPI_Type_create_indexed_block(i[0], i[1], i + 2, old, type);
    case INDEXED_BLOCK_C: return MPI_Type_create_indexed_block_c(c[0], c[1], c + 2, old, type);
    case HINDEXED_BLOCK: return MPI_Type_create_hindexed_block(i[0], i[1], a, old, type);
    case HINDEXED_BLOCK_C: return MPI_Type_create_hindexed_block_c(c[0], c[1], c + 2, old, type);
    case STRUCT: return MPI_Type_create_struct(i[0], i + 1, a, types, type);
    case OLD_STRUCT: return MPI_Type_struct(i[0], i + 1, a, several, type);
    case STRUCT_C: return MPI_Type_create_struct_c(c[0], c + 1, c + 3, types, type);
    case RESIZED: return MPI_Type_create_resized(old, a[0], a[1], type);
    case RESIZED_C: return MPI_Type_create_resized_c(old, c[0], c[1], type);
    case SUBARRAY: return MPI_Type_create_subarray(2, i + 1, i + 3, i + 5, i[7], old, type);
    case SUBARRAY_C: return MPI_Type_create_subarray_c(2, c, c + 2, c + 4, i[1], old, type);
    case DARRAY: return MPI_Type_create_darray(i[0], i[1], 2, i + 3, i + 5, i + 7, i + 9, i[11], old, type);
    case DARRAY_C: return MPI_Type_create_darray_c(i[0], i[1], 2, c, i + 3, i + 5, i + 7, i[9], old, type);
    }
    return MPI_ERR_OTHER;
}

/* ---- answers of a type about itself ---- */

static MPI_Datatype made[SHAPES];

/* Freed at once: types made of it stay valid. */
static void construct_all(void) {
    MPI_Datatype steps;
    MPI_Type_vector(2, 1, 2, MPI_INT, &steps);
    for (int k = 0; k < SHAPES; k++) {
        const char *of = shapes[k].types;
        MPI_Datatype types[2] = {of[0] == 'S' ? steps : MPI_INT, of[1] == 'S' ? steps : MPI_INT};
        CHECK(construct(k, types, &made[k]) == MPI_SUCCESS && MPI_Type_commit(&made[k]) == MPI_SUCCESS);
    }
    MPI_Type_free(&steps);
}

static void check_measures(MPI_Datatype type, MPI_Count bytes, MPI_Count lb, MPI_Count extent, MPI_Count true_lb,
                           MPI_Count true_extent) {
    int n = -1;
    MPI_Aint a = -1, b = -1;
    MPI_Count c = -1, d = -1;
    CHECK(MPI_Type_size(type, &n) == MPI_SUCCESS && n == bytes);
    CHECK(MPI_Type_size_c(type, &c) == MPI_SUCCESS && c == bytes);
    CHECK(MPI_Type_size_x(type, &d) == MPI_SUCCESS && d == bytes);
    CHECK(MPI_Type_get_extent(type, &a, &b) == MPI_SUCCESS && a == lb && b == extent);
    CHECK(MPI_Type_get_extent_c(type, &c, &d) == MPI_SUCCESS && c == lb && d == extent);
    CHECK(MPI_Type_get_extent_x(type, &d, &c) == MPI_SUCCESS && d == lb && c == extent);
    CHECK(MPI_Type_get_true_extent(type, &a, &b) == MPI_SUCCESS && a == true_lb && b == true_extent);
    CHECK(MPI_Type_get_true_extent_c(type, &c, &d) == MPI_SUCCESS && c == true_lb && d == true_extent);
    CHECK(MPI_Type_get_true_extent_x(type, &d, &c) == MPI_SUCCESS && d == true_lb && c == true_extent);
    CHECK(MPI_Type_extent(type, &a) == MPI_SUCCESS && a == extent);
    CHECK(MPI_Type_lb(type, &a) == MPI_SUCCESS && a == lb);
    CHECK(MPI_Type_ub(type, &b) == MPI_SUCCESS && b == lb + extent);
}

static void check_shape_measures(const shape_t *s, MPI_Datatype type) {
    MPI_Count first = s->where.at[0], last = first, unit = sizeof(int);
    for (int k = 1; k < s->where.n; k++) {
        if (s->where.at[k] < first) first = s->where.at[k];
        if (s->where.at[k] > last) last = s->where.at[k];
    }
    check_measures(type, s->where.n * unit, s->lb * unit, s->extent * unit, first * unit, (last + 1 - first) * unit);
}

/* A type made of `steps` returns a reference to it, which the program frees. */
static void check_bases(const shape_t *s, MPI_Datatype *types) {
    for (int k = 0; s->types[k]; k++) {
        int ni, na, nt, combiner, contents[3];
        MPI_Aint none;
        MPI_Datatype of;
        if (s->types[k] == 'I') {
            CHECK(types[k] == MPI_INT);
            continue;
        }
        CHECK(MPI_Type_get_envelope(types[k], &ni, &na, &nt, &combiner) == MPI_SUCCESS &&
              combiner == MPI_COMBINER_VECTOR && ni == 3 && na == 0 && nt == 1);
        CHECK(MPI_Type_get_contents(types[k], 3, 0, 1, contents, &none, &of) == MPI_SUCCESS && of == MPI_INT);
        CHECK(contents[0] == 2 && contents[1] == 1 && contents[2] == 2);
        CHECK(MPI_Type_free(&types[k]) == MPI_SUCCESS);
    }
}

static void check_contents(const shape_t *s, MPI_Datatype type, int small) {
    int i[LONGEST], combiner = -1, rc;
    MPI_Aint a[LONGEST];
    MPI_Count c[LONGEST], ni, na, nc = 0, nt;
    MPI_Datatype types[2];
    if (small) {
        int envelope[3];
        rc = MPI_Type_get_envelope(type, &envelope[0], &envelope[1], &envelope[2], &combiner);
        ni = envelope[0], na = envelope[1], nt = envelope[2];
    } else {
        rc = MPI_Type_get_envelope_c(type, &ni, &na, &nc, &nt, &combiner);
    }
    CHECK(rc == MPI_SUCCESS && combiner == s->combiner && ni == s->ints.n && na == s->aints.n && nc == s->counts.n &&
          nt == (int)strlen(s->types));
    rc = small ? MPI_Type_get_contents(type, LONGEST, LONGEST, 2, i, a, types)
               : MPI_Type_get_contents_c(type, LONGEST, LONGEST, LONGEST, 2, i, a, c, types);
    CHECK(rc == MPI_SUCCESS);
    for (int k = 0; k < s->ints.n; k++) CHECK(i[k] == s->ints.at[k]);
    for (int k = 0; k < s->aints.n; k++) CHECK(a[k] == s->aints.at[k]);
    for (int k = 0; k < s->counts.n; k++) CHECK(c[k] == s->counts.at[k]);
    check_bases(s, types);
}

static void check_all(void) {
    for (int k = 0; k < SHAPES; k++) {
        check_shape_measures(&shapes[k], made[k]);
        check_contents(&shapes[k], made[k], 0);
        if (shapes[k].counts.n == 0) check_contents(&shapes[k], made[k], 1);
    }
}

/* ---- data that a type moves ---- */

static int source[SPAN], target[SPAN];
static int *const from = source + 4, *const to = target + 4; /* some types begin before the buffer's address */

/* The int that element k / n, part k % n of the type is. */
static MPI_Count place(const shape_t *s, int k) { return k / s->where.n * s->extent + s->where.at[k % s->where.n]; }

static void clear(void) {
    for (int k = 0; k < SPAN; k++) source[k] = 1000 * rank + k, target[k] = -1;
}

/* All ints of the type have arrived, and nothing else. */
static void check_target(const shape_t *s) {
    int n = ELEMENTS * s->where.n, others = 0;
    for (int k = 0; k < n; k++) {
        CHECK(to[place(s, k)] == from[place(s, k)]);
        to[place(s, k)] = -1;
    }
    for (int k = 0; k < SPAN; k++) others += target[k] != -1;
    CHECK(others == 0);
}

static void send_to_self(const shape_t *s, MPI_Datatype type) {
    int plain[LONGEST];
    clear();
    CHECK(MPI_Sendrecv(from, ELEMENTS, type, rank, 1, to, ELEMENTS, type, rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE) ==
          MPI_SUCCESS);
    check_target(s);
    MPI_Sendrecv(from, ELEMENTS, type, rank, 2, plain, LONGEST, MPI_INT, rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int k = 0; k < ELEMENTS * s->where.n; k++) CHECK(plain[k] == from[place(s, k)]);
}

enum { NATIVE, NATIVE_C, EXTERNAL, EXTERNAL_C, FORMS };
static const char datarep[] = "external32"; /* big-endian */

/* An upper bound. pack and unpack return the position after their bytes, which begin at c. */
static MPI_Count packed_size(int form, MPI_Datatype type) {
    int n = -1;
    MPI_Aint a = -1;
    MPI_Count c = -1;
    switch (form) {
    case NATIVE: MPI_Pack_size(ELEMENTS, type, MPI_COMM_WORLD, &n); return n;
    case NATIVE_C: MPI_Pack_size_c(ELEMENTS, type, MPI_COMM_WORLD, &c); return c;
    case EXTERNAL: MPI_Pack_external_size(datarep, ELEMENTS, type, &a); return a;
    default: MPI_Pack_external_size_c(datarep, ELEMENTS, type, &c); return c;
    }
}
static MPI_Count pack(int form, MPI_Datatype type, char *packed, MPI_Count c) {
    int n = (int)c, rc;
    MPI_Aint a = (MPI_Aint)c;
    switch (form) {
    case NATIVE: rc = MPI_Pack(from, ELEMENTS, type, packed, ROOM, &n, MPI_COMM_WORLD), c = n; break;
    case NATIVE_C: rc = MPI_Pack_c(from, ELEMENTS, type, packed, ROOM, &c, MPI_COMM_WORLD); break;
    case EXTERNAL: rc = MPI_Pack_external(datarep, from, ELEMENTS, type, packed, ROOM, &a), c = a; break;
    default: rc = MPI_Pack_external_c(datarep, from, ELEMENTS, type, packed, ROOM, &c); break;
    }
    CHECK(rc == MPI_SUCCESS);
    return c;
}
static MPI_Count unpack(int form, MPI_Datatype type, const char *packed, MPI_Count c) {
    int n = (int)c, rc;
    MPI_Aint a = (MPI_Aint)c;
    switch (form) {
    case NATIVE: rc = MPI_Unpack(packed, ROOM, &n, to, ELEMENTS, type, MPI_COMM_WORLD), c = n; break;
    case NATIVE_C: rc = MPI_Unpack_c(packed, ROOM, &c, to, ELEMENTS, type, MPI_COMM_WORLD); break;
    case EXTERNAL: rc = MPI_Unpack_external(datarep, packed, ROOM, &a, to, ELEMENTS, type), c = a; break;
    default: rc = MPI_Unpack_external_c(datarep, packed, ROOM, &c, to, ELEMENTS, type); break;
    }
    CHECK(rc == MPI_SUCCESS);
    return c;
}

enum { PREFIX = 8 }; /* packed after others' bytes */
static char packed[SHAPES][FORMS][ROOM];

static void pack_all(void) {
    clear();
    for (int k = 0; k < SHAPES; k++)
        for (int form = 0; form < FORMS; form++) {
            const shape_t *s = &shapes[k];
            MPI_Count n = ELEMENTS * s->where.n, bytes = n * (MPI_Count)sizeof(int);
            char *out = packed[k][form];
            memset(out, 0x5a, ROOM);
            CHECK(packed_size(form, made[k]) >= bytes && packed_size(form, made[k]) <= bytes + 16);
            CHECK(pack(form, made[k], out, PREFIX) == PREFIX + bytes);
            for (int j = 0; j < n; j++) {
                int got;
                memcpy(&got, out + PREFIX + j * sizeof got, sizeof got);
                CHECK((form < EXTERNAL ? got : (int)ntohl((uint32_t)got)) == from[place(s, j)]);
            }
            CHECK(out[PREFIX - 1] == 0x5a && out[PREFIX + bytes] == 0x5a);
        }
}

static void unpack_all(void) {
    for (int k = 0; k < SHAPES; k++)
        for (int form = 0; form < FORMS; form++) {
            clear();
            CHECK(unpack(form, made[k], packed[k][form], PREFIX) ==
                  PREFIX + ELEMENTS * shapes[k].where.n * (MPI_Count)sizeof(int));
            check_target(&shapes[k]);
        }
}

/* Data that were packed before are unpacked after. */
static void shapes_set_up(void) {
    construct_all();
    check_all();
    pack_all();
}
static void shapes_check(void) {
    check_all();
    unpack_all();
    pack_all();
    for (int k = 0; k < SHAPES; k++) send_to_self(&shapes[k], made[k]);
    for (int k = 0; k < SHAPES; k++) CHECK(MPI_Type_free(&made[k]) == MPI_SUCCESS && made[k] == MPI_DATATYPE_NULL);
}

/* ---- sizes too large for an int ---- */

static const MPI_Count many = 5000000000;
static MPI_Datatype huge;

static void huge_set_up(void) { MPI_Type_contiguous_c(many, MPI_CHAR, &huge); }

static void huge_check(void) {
    int n;
    MPI_Count c, d;
    CHECK(MPI_Type_size(huge, &n) == MPI_SUCCESS && n == MPI_UNDEFINED);
    CHECK(MPI_Type_size_c(huge, &c) == MPI_SUCCESS && c == many);
    CHECK(MPI_Type_get_extent_c(huge, &c, &d) == MPI_SUCCESS && c == 0 && d == many);
    MPI_Type_free(&huge);
}

/* ---- names ---- */

static MPI_Datatype named, nameless;

static int has_name(MPI_Datatype type, const char *name) {
    char text[MPI_MAX_OBJECT_NAME];
    int n = -1;
    return MPI_Type_get_name(type, text, &n) == MPI_SUCCESS && !strcmp(text, name) && n == (int)strlen(name);
}

static void names_set_up(void) {
    MPI_Type_contiguous(2, MPI_INT, &named);
    MPI_Type_contiguous(2, MPI_INT, &nameless);
    CHECK(MPI_Type_set_name(named, "first") == MPI_SUCCESS && MPI_Type_set_name(named, "a pair") == MPI_SUCCESS);
    CHECK(MPI_Type_set_name(MPI_SHORT, "brief") == MPI_SUCCESS && has_name(named, "a pair"));
}
static void names_check(void) {
    CHECK(has_name(named, "a pair") && has_name(nameless, "") && has_name(MPI_INT, "MPI_INT") &&
          has_name(MPI_DOUBLE_INT, "MPI_DOUBLE_INT"));
    CHECK(has_name(MPI_SHORT, "brief"));
    MPI_Type_free(&named);
    MPI_Type_free(&nameless);
}

/* ---- types that the library makes once ---- */

static MPI_Datatype f90[3], pair, matched[3];

static void ask_f90(MPI_Datatype *types) {
    CHECK(MPI_Type_create_f90_real(6, 30, &types[0]) == MPI_SUCCESS);
    CHECK(MPI_Type_create_f90_complex(15, 300, &types[1]) == MPI_SUCCESS);
    CHECK(MPI_Type_create_f90_integer(9, &types[2]) == MPI_SUCCESS);
}

static void check_f90(void) {
    static const struct { int combiner, n, contents[2]; MPI_Count bytes;
    } want[] = {{MPI_COMBINER_F90_REAL, 2, {6, 30}, 4},
                {MPI_COMBINER_F90_COMPLEX, 2, {15, 300}, 16},
                {MPI_COMBINER_F90_INTEGER, 1, {9}, 4}};
    MPI_Datatype again[3];
    ask_f90(again);
    for (int k = 0; k < 3; k++) {
        int ni, na, nt, combiner, contents[2];
        CHECK(again[k] == f90[k]);
        CHECK(MPI_Type_get_envelope(f90[k], &ni, &na, &nt, &combiner) == MPI_SUCCESS);
        CHECK(ni == want[k].n && na == 0 && nt == 0 && combiner == want[k].combiner);
        CHECK(MPI_Type_get_contents(f90[k], 2, 0, 0, contents, NULL, NULL) == MPI_SUCCESS);
        for (int j = 0; j < want[k].n; j++) CHECK(contents[j] == want[k].contents[j]);
        check_measures(f90[k], want[k].bytes, 0, want[k].bytes, 0, want[k].bytes);
    }
    double sent[2] = {rank, 2.5}, got[2] = {0};
    MPI_Sendrecv(sent, 1, f90[1], right, 3, got, 1, f90[1], left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(got[0] == left && got[1] == 2.5);
}

static void check_pairs(void) {
    static const struct { MPI_Datatype value, index, want;
    } pairs[] = {{MPI_FLOAT, MPI_INT, MPI_FLOAT_INT},
                 {MPI_DOUBLE, MPI_INT, MPI_DOUBLE_INT},
                 {MPI_LONG, MPI_INT, MPI_LONG_INT},
                 {MPI_INT, MPI_INT, MPI_2INT},
                 {MPI_LONG_DOUBLE, MPI_INT, MPI_LONG_DOUBLE_INT},
                 {MPI_INT, MPI_DOUBLE, MPI_DATATYPE_NULL}};
    struct { short value; int at; } mine = {(short)(rank == 2 ? 1000 : rank), 100 + rank}, most = {0, 0};
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        MPI_Datatype got;
        CHECK(MPI_Type_get_value_index(pairs[k].value, pairs[k].index, &got) == MPI_SUCCESS && got == pairs[k].want);
    }
    CHECK(MPI_Allreduce(&mine, &most, 1, pair, MPI_MAXLOC, MPI_COMM_WORLD) == MPI_SUCCESS && most.value == 1000 &&
          most.at == 102);
}

static void ask_matching(MPI_Datatype *types) {
    CHECK(MPI_Type_match_size(MPI_TYPECLASS_REAL, 8, &types[0]) == MPI_SUCCESS);
    CHECK(MPI_Type_match_size(MPI_TYPECLASS_INTEGER, 2, &types[1]) == MPI_SUCCESS);
    CHECK(MPI_Type_match_size(MPI_TYPECLASS_COMPLEX, 8, &types[2]) == MPI_SUCCESS);
}
static void check_matching(void) {
    static const MPI_Count bytes[3] = {8, 2, 8};
    MPI_Datatype again[3];
    ask_matching(again);
    for (int k = 0; k < 3; k++) {
        CHECK(again[k] == matched[k]);
        check_measures(matched[k], bytes[k], 0, bytes[k], 0, bytes[k]);
    }
}

static void check_named(void) {
    int ni, na, nt, combiner;
    CHECK(MPI_Type_get_envelope(MPI_INT, &ni, &na, &nt, &combiner) == MPI_SUCCESS && combiner == MPI_COMBINER_NAMED &&
          ni == 0 && na == 0 && nt == 0);
    check_measures(MPI_DOUBLE, 8, 0, 8, 0, 8);
    check_measures(MPI_SHORT_INT, 6, 0, 8, 0, 8);
}

static void permanent_set_up(void) {
    ask_f90(f90);
    ask_matching(matched);
    CHECK(MPI_Type_get_value_index(MPI_SHORT, MPI_INT, &pair) == MPI_SUCCESS);
    check_named();
}
static void permanent_check(void) {
    check_f90();
    check_pairs();
    check_matching();
    check_named();
}

/* ---- operations ---- */

static MPI_Op ordered, unordered;

static void first_of(void *in, void *inout, int *n, MPI_Datatype *type) {
    CHECK(*type == MPI_INT);
    memcpy(inout, in, (size_t)*n * sizeof(int));
}

static void check_commutative(MPI_Op op, int want) {
    int commutes = -1;
    CHECK(MPI_Op_commutative(op, &commutes) == MPI_SUCCESS && commutes == want);
}

static void operations_set_up(void) {
    MPI_Op_create(first_of, 0, &ordered);
    MPI_Op_create(first_of, 1, &unordered);
    check_commutative(ordered, 0);
}
static void operations_check(void) {
    int mine = rank + 5, first = -1;
    check_commutative(ordered, 0);
    check_commutative(unordered, 1);
    check_commutative(MPI_SUM, 1);
    check_commutative(MPI_REPLACE, 0);
    MPI_Allreduce(&mine, &first, 1, MPI_INT, ordered, MPI_COMM_WORLD);
    CHECK(first == 5);
    MPI_Op_free(&ordered);
    MPI_Op_free(&unordered);
}

/* ---- wrong arguments ---- */

static MPI_Datatype fine, big;

static void wrong_set_up(void) {
    lenient_set_up();
    MPI_Type_vector(2, 1, 2, MPI_INT, &fine);
    MPI_Type_contiguous_c(2, MPI_INT, &big);
}

static void wrong_makers(void) {
    MPI_Datatype type = MPI_DATATYPE_NULL, predefined = MPI_INT;
    int one = 1, zero = 0;
    CHECK(class_of(MPI_Type_contiguous(-1, MPI_INT, &type)) == MPI_ERR_COUNT &&
          class_of(MPI_Type_contiguous_c(-1, MPI_INT, &type)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Type_vector(1, -1, 1, MPI_INT, &type)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Type_create_indexed_block(-1, 1, &zero, MPI_INT, &type)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Type_create_struct(-1, &one, NULL, &predefined, &type)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Type_contiguous(1, MPI_DATATYPE_NULL, &type)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_contiguous(1, (MPI_Datatype)0x77, &type)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_create_subarray(1, &one, &one, &zero, 77, MPI_INT, &type)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Type_create_f90_real(500, 1, &type)) == MPI_ERR_OTHER &&
          class_of(MPI_Type_create_f90_integer(99, &type)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Type_match_size(99, 4, &type)) == MPI_ERR_ARG &&
          class_of(MPI_Type_match_size(MPI_TYPECLASS_REAL, 3, &type)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Type_get_value_index(MPI_DATATYPE_NULL, MPI_INT, &type)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_free(&predefined)) == MPI_ERR_TYPE && type == MPI_DATATYPE_NULL);
}

static void wrong_questions(void) {
    int i[3], ni, na, nt, combiner, n;
    MPI_Aint a[1];
    MPI_Count c[1];
    MPI_Datatype types[1];
    /* its count may be too large for an int */
    CHECK(class_of(MPI_Type_get_envelope(big, &ni, &na, &nt, &combiner)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_get_contents(big, 3, 1, 1, i, a, types)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_get_contents(fine, 2, 0, 1, i, a, types)) == MPI_ERR_OTHER); /* no room */
    CHECK(class_of(MPI_Type_get_contents_c(big, 0, 0, 0, 1, i, a, c, types)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Type_get_contents(MPI_INT, 3, 1, 1, i, a, types)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_get_contents(MPI_DATATYPE_NULL, 3, 1, 1, i, a, types)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_size(MPI_DATATYPE_NULL, &n)) == MPI_ERR_TYPE &&
          class_of(MPI_Type_get_extent((MPI_Datatype)0x77, a, a)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Type_set_name(MPI_DATATYPE_NULL, "x")) == MPI_ERR_TYPE &&
          class_of(MPI_Op_commutative(MPI_OP_NULL, &n)) == MPI_ERR_OP);
}

static void wrong_packs(void) {
    int position = 0;
    char room[ROOM];
    CHECK(class_of(MPI_Pack(from, 1, fine, room, ROOM, &position, lenient)) == MPI_ERR_TYPE); /* not committed */
    CHECK(class_of(MPI_Pack(from, -1, MPI_INT, room, ROOM, &position, lenient)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Unpack(room, ROOM, &position, to, 1, MPI_INT, MPI_COMM_NULL)) == MPI_ERR_COMM);
    CHECK(position == 0);
}

static void wrong_check(void) {
    wrong_makers();
    wrong_questions();
    wrong_packs();
    MPI_Type_free(&fine);
    MPI_Type_free(&big);
    MPI_Comm_free(&lenient);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(shapes),    STATE(huge),       STATE(names),
                                     STATE(permanent), STATE(operations), STATE(wrong)};
    return run_four_ranks(argc, argv, states, sizeof states / sizeof *states);
}
