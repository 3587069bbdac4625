/* Surface: the MPI tool interface, before MPI_Init, too. See checkpointed.h and test_surface.py.
 *
 * The library determines which variables exist. MPICH's wheel has control variables, but neither performance variables
 * nor events. Functions for missing things are called, too, and must report that.
 */
#include "../../checkpointed.h"

#include <mpi.h>

enum { NAME = 500, TEXT = 5000 };

/* ---- control variables ---- */

static MPI_T_cvar_handle number, word;
static int number_index, number_before, word_index;
static char word_before[TEXT];

/* The first variable of a type that can be read without an object. */
static int first_of(MPI_Datatype wanted, const char *containing, char *name) {
    int n;
    MPI_T_cvar_get_num(&n);
    for (int i = 0; i < n; i++) {
        char text[TEXT];
        int name_length = NAME, text_length = TEXT, verbosity, bind, scope;
        MPI_Datatype type;
        MPI_T_enum values;
        MPI_T_cvar_get_info(i, name, &name_length, &verbosity, &type, &values, text, &text_length, &bind, &scope);
        if (type == wanted && bind == MPI_T_BIND_NO_OBJECT && strstr(name, containing)) return i;
    }
    return -1;
}

static void control_set_up(void) {
    char name[NAME];
    int count, value = 4321;
    number_index = first_of(MPI_INT, "COMM_CONNECT_TIMEOUT", name);
    CHECK(number_index >= 0);
    MPI_T_cvar_handle_alloc(number_index, NULL, &number, &count);
    CHECK(count == 1);
    MPI_T_cvar_read(number, &number_before);
    CHECK(MPI_T_cvar_write(number, &value) == MPI_SUCCESS);
    word_index = first_of(MPI_CHAR, "BCAST_TREE_TYPE", name);
    MPI_T_cvar_handle_alloc(word_index, NULL, &word, &count);
    CHECK(count > 1 && count < TEXT);
    MPI_T_cvar_read(word, word_before);
}

static void control_check(void) {
    char name[NAME], text[TEXT];
    int value = 0, index, count;
    MPI_T_cvar_handle again;
    CHECK(MPI_T_cvar_read(number, &value) == MPI_SUCCESS && value == 4321); /* written again by us */
    CHECK(MPI_T_cvar_read(word, text) == MPI_SUCCESS && !strcmp(text, word_before));
    CHECK(first_of(MPI_INT, "COMM_CONNECT_TIMEOUT", name) == number_index);
    CHECK(MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS && index == number_index);
    CHECK(MPI_T_cvar_get_index("no such variable", &index) == MPI_T_ERR_INVALID_NAME);
    MPI_T_cvar_handle_alloc(number_index, NULL, &again, &count);
    MPI_T_cvar_write(again, &number_before);
    CHECK(MPI_T_cvar_read(number, &value) == MPI_SUCCESS && value == number_before);
    MPI_T_cvar_handle_free(&again);
    MPI_T_cvar_handle_free(&number);
    MPI_T_cvar_handle_free(&word);
    CHECK(number == MPI_T_CVAR_HANDLE_NULL && word == MPI_T_CVAR_HANDLE_NULL);
}

/* ---- performance variables: a handle of each one that works without an object ---- */

enum { MANY = 100 };
static MPI_T_pvar_session session, empty_session;
static MPI_T_pvar_handle handles[MANY];
static int pvars, continuous[MANY];

static void performance_set_up(void) {
    CHECK(MPI_T_pvar_session_create(&session) == MPI_SUCCESS &&
          MPI_T_pvar_session_create(&empty_session) == MPI_SUCCESS);
    MPI_T_pvar_get_num(&pvars);
    for (int i = 0; i < pvars && i < MANY; i++) {
        char name[NAME], text[TEXT];
        int name_length = NAME, text_length = TEXT, verbosity, class, bind, readonly, atomic, count, index;
        MPI_Datatype type;
        MPI_T_enum values;
        MPI_T_pvar_get_info(i, name, &name_length, &verbosity, &class, &type, &values, text, &text_length, &bind,
                            &readonly, &continuous[i], &atomic);
        CHECK(MPI_T_pvar_get_index(name, class, &index) == MPI_SUCCESS && index == i);
        if (bind == MPI_T_BIND_NO_OBJECT) MPI_T_pvar_handle_alloc(session, i, NULL, &handles[i], &count);
        if (values != MPI_T_ENUM_NULL) {
            int items, value;
            name_length = NAME;
            CHECK(MPI_T_enum_get_info(values, &items, name, &name_length) == MPI_SUCCESS && items > 0);
            name_length = NAME;
            CHECK(MPI_T_enum_get_item(values, 0, &value, name, &name_length) == MPI_SUCCESS);
        }
    }
    CHECK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
}

static void performance_check(void) {
    char value[TEXT];
    int index;
    for (int i = 0; i < pvars && i < MANY; i++) {
        if (handles[i] == MPI_T_PVAR_HANDLE_NULL) continue;
        CHECK(MPI_T_pvar_read(session, handles[i], value) == MPI_SUCCESS);
        if (!continuous[i])
            CHECK(MPI_T_pvar_stop(session, handles[i]) == MPI_SUCCESS &&
                  MPI_T_pvar_start(session, handles[i]) == MPI_SUCCESS);
        MPI_T_pvar_readreset(session, handles[i], value);
        MPI_T_pvar_write(session, handles[i], value);
        CHECK(MPI_T_pvar_handle_free(session, &handles[i]) == MPI_SUCCESS && handles[i] == MPI_T_PVAR_HANDLE_NULL);
    }
    CHECK(MPI_T_pvar_get_index("no such variable", MPI_T_PVAR_CLASS_STATE, &index) == MPI_T_ERR_INVALID_NAME);
    CHECK(MPI_T_pvar_stop(session, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_reset(session, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
    CHECK(MPI_T_pvar_read(session, MPI_T_PVAR_ALL_HANDLES, value) != MPI_SUCCESS);
    CHECK(MPI_T_pvar_session_free(&session) == MPI_SUCCESS && session == MPI_T_PVAR_SESSION_NULL);
    CHECK(MPI_T_pvar_session_free(&empty_session) == MPI_SUCCESS);
}

/* ---- categories, which have no handles ---- */

static int categories, stamp;

static void categories_set_up(void) {
    MPI_T_category_get_num(&categories);
    MPI_T_category_changed(&stamp);
    CHECK(categories > 0);
}

static void categories_check(void) {
    int n, all = 0, members[1000];
    MPI_T_category_get_num(&n);
    CHECK(n == categories);
    MPI_T_category_changed(&n);
    CHECK(n == stamp);
    for (int i = 0; i < categories; i++) {
        char name[NAME], text[TEXT];
        int name_length = NAME, text_length = TEXT, controls, variables, parts, index, events = -1;
        MPI_T_category_get_info(i, name, &name_length, text, &text_length, &controls, &variables, &parts);
        CHECK(MPI_T_category_get_index(name, &index) == MPI_SUCCESS && index == i);
        CHECK(MPI_T_category_get_num_events(i, &events) == MPI_SUCCESS && events >= 0);
        CHECK(MPI_T_category_get_cvars(i, 1000, members) == MPI_SUCCESS);
        if (controls > 0) CHECK(members[0] >= 0);
        CHECK(MPI_T_category_get_pvars(i, 1000, members) == MPI_SUCCESS &&
              MPI_T_category_get_categories(i, 1000, members) == MPI_SUCCESS &&
              MPI_T_category_get_events(i, 1000, members) == MPI_SUCCESS);
        all += controls;
    }
    CHECK(all > 0);
}

/* ---- events and their sources ---- */

static void events_set_up(void) {}

static void events_check(void) {
    char name[NAME], text[TEXT];
    int n = -1, index, name_length = NAME, text_length = TEXT, verbosity, elements = 0, bind;
    MPI_T_enum values;
    MPI_T_event_registration registration = NULL;
    MPI_T_source_order order;
    MPI_Info info;
    MPI_Count ticks, most, now;
    CHECK(MPI_T_event_get_num(&n) == MPI_SUCCESS && n >= 0);
    CHECK(MPI_T_event_get_index("no such event", &index) == MPI_T_ERR_INVALID_NAME);
    CHECK(MPI_T_event_get_info(n, name, &name_length, &verbosity, NULL, NULL, &elements, &values, &info, text,
                               &text_length, &bind) == MPI_T_ERR_INVALID_INDEX);
    CHECK(MPI_T_event_handle_alloc(n, NULL, MPI_INFO_NULL, &registration) == MPI_T_ERR_INVALID_INDEX &&
          registration == NULL);
    CHECK(MPI_T_source_get_num(&n) == MPI_SUCCESS && n >= 0);
    CHECK(MPI_T_source_get_info(n, name, &name_length, text, &text_length, &order, &ticks, &most, &info) ==
          MPI_T_ERR_INVALID_INDEX);
    CHECK(MPI_T_source_get_timestamp(n, &now) == MPI_T_ERR_INVALID_INDEX);
}

/* ---- calls that need a registration or an instance; without one they are undefined natively, so they are made only
 * under manapy, which has neither ---- */

static void registrations_set_up(void) {}

static void registrations_check(void) {
    if (getenv("MPI4PY_LIBMPI") == NULL) return; /* native */
    MPI_T_event_registration none = NULL;
    MPI_T_event_instance instance = NULL;
    char buffer[NAME];
    int source;
    MPI_Info info;
    MPI_Count time;
    CHECK(MPI_T_event_register_callback(none, MPI_T_CB_REQUIRE_NONE, MPI_INFO_NULL, NULL, NULL) ==
          MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_callback_get_info(none, MPI_T_CB_REQUIRE_NONE, &info) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_callback_set_info(none, MPI_T_CB_REQUIRE_NONE, MPI_INFO_NULL) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_handle_get_info(none, &info) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_handle_set_info(none, MPI_INFO_NULL) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_set_dropped_handler(none, NULL) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_handle_free(none, NULL, NULL) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_read(instance, 0, buffer) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_copy(instance, buffer) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_get_timestamp(instance, &time) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_event_get_source(instance, &source) == MPI_T_ERR_INVALID_HANDLE);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(control), STATE(performance), STATE(categories), STATE(events),
                                     STATE(registrations)};
    int provided, n;
    CHECK(MPI_T_cvar_get_num(&n) == MPI_T_ERR_NOT_INITIALIZED);
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    MPI_Init(&argc, &argv);
    int result = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    MPI_T_finalize();
    return result;
}
