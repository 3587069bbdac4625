/* pmix_agent.h - see pmix_agent.c. */
#ifndef MANAPY_PMIX_AGENT_H
#define MANAPY_PMIX_AGENT_H

#include <stdbool.h>
#include <string.h>

static inline bool mpy_pmix_is_slurms(const char *name_space) { return strncmp(name_space, "slurm.", 6) == 0; }

/* In a forked child of rank `rank`: start the agent, which serves the rank at the other end of `fd` until it ends the
 * conversation. The child ends as the agent does. patience_s: for the server's answer to PMIx_Finalize. */
_Noreturn void mpy_pmix_agent(int fd, int rank, int patience_s);

#endif
