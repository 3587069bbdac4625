/* kv_protocol.h - the protocol between the RDMA agent of a host (Python, manapy/rdma/agent.py) and its clients:
 * programs (kv.c) and commands. It is defined here; manapy/rdma/kv_protocol.py mirrors it and a test compares both.
 *
 * Transport: a UNIX-domain stream socket, 0600. Peers must be processes of the agent's user. Text lines,
 * '\n'-terminated; a request is at most SHIFT_KV_LINE_MAX bytes. Fields are separated by one blank. Keys are 1 to
 * SHIFT_KV_KEY_MAX printable ASCII characters without blanks. Values are hexadecimal, 1 to SHIFT_KV_VALUE bytes. A
 * request has at most SHIFT_KV_BATCH of them (kv.h). A connection begins with the handshake of control.h, with the
 * greeting "MANAPY-SHIFT <SHIFT_KV_VERSION> <nonce>" and the role program or command. The secret is in the file
 * <socket>.secret, 0600.
 *
 * Every request begins with a number, which its answer repeats. So the answer to an abandoned request can be
 * distinguished from the answer to the next one:
 *   <n> OK [fields]          <n> ERROR <EINVAL|EACCES|ENOENT|EHOSTUNREACH> text to the end of the line
 *
 * program -> agent
 *   <n> HELLO job client rank   first. client: 32 hex digits of its own choice, the same after each reconnection; rank:
 *                               number or "-". OK known: the agent has all that this client has put; OK new: it has
 *                               nothing
 *   <n> PUT key value ...       OK when the store has all of them
 *   <n> GET key ...             OK value ..., a "-" for each key that does not exist
 *   <n> DEL key ...             OK, even if they do not exist. A key that another client has put meanwhile stays
 *   <n> EVENT json              to the end of the line: an object, or a list of them; manapy/rdma/README.md has their
 *                               members. OK
 *   <n> BYE                     the client's keys may be deleted. OK
 * agent -> program, at any time
 *   !MOVE qp(number or *) device
 * Lines with another word after the "!" must be ignored.
 *
 * command -> agent
 *   <n> STATUS                  OK json
 *   <n> EVENTS seq              OK json: a list of the events after that one (0: all that are kept; -1: none)
 *   <n> WATCH seq               OK, then <n> EVENT json, without end: the same events, and all later ones
 *   <n> MOVE target qp device   target: rank, process id or *. OK and the number of programs that were told
 *   <n> GUARD pid directory     the manapy job in this directory (to the end of the line), as long as the process
 *                               lives: checkpointed after a fallback. OK
 *   <n> STAY <pid or ->         OK: the agent stays at least as long as that process, or (-) the process that asked
 */
#ifndef MANAPY_RDMA_KV_PROTOCOL_H
#define MANAPY_RDMA_KV_PROTOCOL_H

#define SHIFT_KV_SERVICE "MANAPY-SHIFT"
#define SHIFT_KV_VERSION 2
#define SHIFT_KV_LINE_MAX (1 << 16)

#endif
