/* A libpmix for tests that fails in the way that FAKE_PMIX names, or serves one rank. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "join/manager/pmix_abi.h"

static char *kept; /* the value that was put last */

static int fails(const char *how) {
    const char *chosen = getenv("FAKE_PMIX");
    return chosen != NULL && strcmp(chosen, how) == 0;
}

__attribute__((constructor)) static void load(void) {
    if (fails("crash at load")) raise(SIGSEGV);
}

pmix_init_t PMIx_Init;
pmix_finalize_t PMIx_Finalize;
pmix_put_t PMIx_Put;
pmix_commit_t PMIx_Commit;
pmix_fence_t PMIx_Fence;
pmix_get_t PMIx_Get;
pmix_abort_t PMIx_Abort;
pmix_error_string_t PMIx_Error_string;

pmix_status_t PMIx_Init(pmix_proc_t *proc, pmix_info_t info[], size_t ninfo) {
    (void)info, (void)ninfo;
    if (fails("crash in init")) abort();
    if (fails("exit in init")) exit(0);
    if (fails("hang in init")) pause();
    if (fails("refuse")) return -25;
    strcpy(proc->nspace, "fake");
    proc->rank = fails("another rank") ? 7 : 0;
    return write(2, "chatter\n", 8) == 8 ? PMIX_SUCCESS : -1;
}

pmix_status_t PMIx_Finalize(const pmix_info_t info[], size_t ninfo) {
    (void)info, (void)ninfo;
    if (fails("hang in finalize")) pause();
    return PMIX_SUCCESS;
}

pmix_status_t PMIx_Put(pmix_scope_t scope, const char key[], pmix_value_t *value) {
    (void)scope, (void)key;
    kept = strdup(value->data.string);
    return fails("put") ? -1 : PMIX_SUCCESS;
}

pmix_status_t PMIx_Commit(void) { return kept != NULL ? PMIX_SUCCESS : -1; }

pmix_status_t PMIx_Fence(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[], size_t ninfo) {
    (void)procs, (void)nprocs;
    if (fails("crash in fence")) abort();
    return ninfo == 1 && strcmp(info[0].key, PMIX_COLLECT_DATA) == 0 ? PMIX_SUCCESS : -1;
}

pmix_status_t PMIx_Get(const pmix_proc_t *proc, const char key[], const pmix_info_t info[], size_t ninfo,
                       pmix_value_t **value) {
    (void)proc, (void)info, (void)ninfo;
    *value = calloc(1, sizeof **value);
    (*value)->type = fails("no size") ? PMIX_STRING : PMIX_UINT32;
    (*value)->data.uint32 = strcmp(key, PMIX_JOB_SIZE) == 0 || strcmp(key, PMIX_LOCAL_SIZE) == 0;
    return PMIX_SUCCESS;
}

pmix_status_t PMIx_Abort(int status, const char msg[], pmix_proc_t procs[], size_t nprocs) {
    (void)status, (void)msg, (void)procs, (void)nprocs;
    return PMIX_SUCCESS;
}

const char *PMIx_Error_string(pmix_status_t status) { return status == -25 ? "UNREACHABLE" : "ERROR"; }
