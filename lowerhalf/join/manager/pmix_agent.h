/* pmix_agent.h - see pmix_agent.c. */
#ifndef MANAPY_PMIX_AGENT_H
#define MANAPY_PMIX_AGENT_H

/* In a forked child of rank `rank`: serve it at the other end of `fd` until it ends the conversation, then exit. */
_Noreturn void mpy_pmix_agent(int fd, int rank);

#endif
