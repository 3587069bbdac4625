/* node.h - see node.c. */
#ifndef MANAPY_NODE_H
#define MANAPY_NODE_H

#include "rendezvous.h"

enum { MPY_NODE_NAME = 48 };

/* Sets job->through_agent. The first rank of a node that isn't rank 0's starts the agent. False with one line in
 * `error`. */
bool mpy_node_join(mpy_job_t *job, char *error, size_t n);
/* Must the ranks of this host speak to an agent? */
bool mpy_node_needs_agent(const mpy_job_t *job);
/* The name of the agent's Unix socket, in the abstract name space. */
void mpy_node_name(const mpy_job_t *job, char name[MPY_NODE_NAME]);

#endif
