/* control.h - the control protocol between a rank's control thread (C, lower half) and the coordinator (Python). One
 * source: manapy/ckpt/protocol.py mirrors it and a test compares both.
 *
 * Transport: one TCP connection per rank, and one per command (`manapy checkpoint` ...), to the coordinator's socket,
 * which is bound to loopback, or to the job's interface if the job spans hosts. The ranks of each other host connect to
 * the agent of their node instead, by a Unix socket (lowerhalf/join/node.c), and the agent has one connection to the
 * coordinator. In a job of many nodes most agents have a connection to another agent instead. Ranks speak with their
 * agent as with the coordinator. Text lines, '\n'-terminated, at most MPY_LINE_MAX bytes without their seal (JSON may
 * be longer); fields separated by one blank; integers decimal, identities 16 hex digits; strings percent-encoded (bytes
 * <= 0x20, '%' and >= 0x7f), the empty string is "%"; lists comma-separated without blanks ("-" = empty).
 *
 * Authentication (both directions, HMAC-SHA-256 with the 32-byte secret of DIR/secret, mode 0600):
 *   server: MANAPY <protocol version> <server nonce: 32 hex>
 *   client: AUTH <role: rank|command|node> <client nonce: 32 hex>
 *           <HMAC("client" | server nonce | client nonce | role): 64 hex>
 *   server: OK <HMAC("server" | client nonce | server nonce): 64 hex>          or  DENIED, or BUSY reason (and closes)
 * ("|" is plain concatenation of the ASCII texts.) BUSY: the coordinator can't take a rank now; it may try again.
 *
 * From then on each line is sealed, in both directions: SEAL LINE. SEAL is the first 32 hex digits of HMAC-SHA-256 over
 * END NUMBER LINE, under the connection's key HMAC("session" | server nonce | client nonce | role). END is the sender
 * (client or server). NUMBER counts the sender's lines, beginning with 0. So nobody on the network can insert, drop,
 * repeat or change a line: a connection with a wrong seal is closed. Lines are not secret. Lines over a Unix socket
 * (between a rank and the agent of its node) have no seals: only its two ends can write to it.
 *
 * rank -> coordinator
 *   HELLO rank size host pid generation checkpoint(or %)      first line of a rank
 *   PROGRAM mpi_state(none|init|up|finalized) text segments   what runs, for status; the real MPI's files in /dev/shm:
 *                                                             the coordinator removes them if the job is killed.
 *                                                             init: the program has been in MPI_Init for
 *                                                             MPY_INIT_MS. A shorter MPI_Init is not reported
 *   CHECKED epoch [callbacks]                                 nothing here prevents a checkpoint. callbacks (1): the
 *                                                             program has some, and what they may close (descriptors,
 *                                                             children) is checked in CALL
 *   REFUSED epoch reason                                      something does; names the fd or pid
 *   DISABLED epoch                                            the program has disabled checkpoints: CHECKED or REFUSED
 *                                                             follow when it has enabled them
 *   ROWS epoch version more n row...                          row = cid:ggid:seq:members:handle:name; members = list,
 *                                                             a-b = consecutive ranks, a-b/s = every s-th of them. The
 *                                                             first time: all rows; later: rows made since. handle 0:
 *                                                             under construction. more = 1: the next line continues
 *                                                             the list, so that no line is too long
 *   RAISE epoch version cid seq                               SEQ has reached or passed TARGET (sent for each such SEQ)
 *   RETRACT epoch version                                     a call that may have been reported is no longer counted
 *                                                             (it failed on its arguments): the coordinator must ask
 *                                                             for everything again, by an INTENT
 *   STATE epoch version applied n thread...                   the threads that are not running; thread =
 *                                                             state:cid:mode:peers, state =
 *                                                             blocked|collective|parked|finished, and behind them
 *                                                             disabled if the program has disabled checkpoints; mode =
 *                                                             all|any; blocked with peers "-": on every member of cid
 *                                                             (nobody if 0); applied = messages of the clock received
 *                                                             in this epoch, INTENT included. Version rules:
 *                                                             messages.py
 *   FROZEN epoch version       NOTFROZEN epoch version
 *   CALLED epoch                                              the callbacks have run, and nothing prevents a checkpoint
 *   STOPPED epoch                                             all upper threads stopped by signal, none in the lower
 *                                                             half
 *   DRAINED epoch
 *   WRITTEN epoch bytes file_bytes crc seconds host seal kept way
 *                                                             image is complete and fsynced under the temporary
 *                                                             directory; seal: its header's; kept: how many of the
 *                                                             bytes are in parent images; way: how changed pages were
 *                                                             found (pagemap, soft-dirty, hash; %: not at all)
 *   CAPTURED epoch why_not                                    the program may continue; WRITTEN or FAILED follows.
 *                                                             why_not: why the image was written already, not beside
 *                                                             the program (or %)
 *   FAILED epoch reason                                       could not; the rank will resume on ABORT
 *   RESUMED epoch
 *   READY generation                                          after a restart: image verified, memory restored, MPI
 *                                                             rebuilt
 *   REQUEST ticket                                            the program itself asks for a checkpoint
 *   TREE question processes                                   answer to TREE: the processes of the rank, if it has
 *                                                             several (lowerhalf/tree/tree.h, mpy_tree_look)
 *   PLACE directory                                           the program wants later checkpoints there
 *                                                             (dmtcp_set_ckpt_dir); absolute
 *   DONE code                                                 the program ends, with this exit code: no further
 *                                                             checkpoint
 * coordinator -> rank
 *   CHECK epoch grace_ms                                      look for what can't be saved; nothing stops yet
 *   INTENT epoch                                              also while another one is pending; that one ends
 *   TARGETS epoch more n cid:seq...                           rows left out are at their target; more as with ROWS
 *   TARGET epoch cid seq
 *   ADVANCE epoch       WITHDRAW epoch
 *   FREEZE epoch version       THAW epoch
 *   CALL epoch                                                to ranks with callbacks: the main thread calls those of
 *                                                             before_checkpoint, and then waits for RESUME or ABORT
 *   STOP epoch                                                signal all upper threads to a halt
 *   DRAIN epoch                                               all together: empty the network
 *   WRITE epoch directory [way base_epoch base]               write DIRECTORY/rank-NNNNN.img. way: how to find changed
 *                                                             pages (auto, pagemap, soft-dirty, hash), for this image
 *                                                             and for the next one.
 *                                                             base_epoch: of the last published checkpoint, if this
 *                                                             image may leave out pages that are as there, else 0;
 *                                                             base: its directory, relative to DIRECTORY
 *   CAPTURE epoch directory [way base_epoch base]             the same, but beside the program
 *   RESUME epoch then(continue|exit) path                     published, or captured (path: %); exit: leave with
 *                                                             MPY_EXIT_CHECKPOINTED
 *   ABORT epoch reason                                        nothing published; continue
 *   TICKET ticket ok|failed path_or_reason                    answer to REQUEST (the lower block learns it)
 *   TREE question                                             which processes has the rank? Asked only when a person
 *                                                             asks
 *   GO                                                        after all READY: run
 *   NOTED                                                     answer to DONE: job.json says how this rank, or the job,
 *                                                             has ended; in a chain a rank waits for this before it
 *                                                             ends
 *   SAY text                                                  print this line on standard error
 *   KILL code reason                                          another rank died or the job is stopped
 *   UNLED                                                     from the agent of a node: the coordinator is lost. If the
 *                                                             connection with an agent ends without it, the agent is
 *                                                             lost
 *
 * node -> coordinator
 *   NODE host pid                                             first line of an agent
 *   STAY                                                      after BELOW: the other agent can't be reached
 *   LISTENS address port                                      where other agents can connect to this one
 *   JOINED number                                             an agent has come below this one; the coordinator ends
 *                                                             its first connection
 *   PARTED number time ranks                                  its connection has ended; these ranks were behind it
 *   FROM number line                                          a line of that agent itself
 *   LINES ranks line (TAB ranks line)...                      lines that these ranks have sent (rank -> coordinator);
 *                                                             up to 2 MPY_LINE_MAX long. Each rank's lines are in
 *                                                             order. LOST time in place of a line: the connection of
 *                                                             these ranks has ended (no time: after DONE); GONE:
 *                                                             afterwards, so have their processes. DONE gets a time
 *                                                             if its code is not 0. So that lines are equal, the agent
 *                                                             puts numbers of its own in place of versions, and gives
 *                                                             each row a ROWS of its own
 *                                                             (manapy/clock/line_merging.py)
 *   TIME time                                                 what time it is, said regularly. All times are those
 *                                                             when the agent noticed or sent something, in us of its
 *                                                             CLOCK_MONOTONIC (manapy/ckpt/peer_time.py)
 * coordinator -> node
 *   DIRECT                                                    answer to NODE: this connection stays
 *   BELOW number host address port                            answer to NODE: connect to the agent of another host, in
 *                                                             place of this connection
 *   LISTEN                                                    let other agents connect to you
 *   FOR number line                                           a line for the agent below you that has this number
 *   LINES ranks line (TAB ranks line)...                      lines for these ranks (coordinator -> rank). FREEZE has
 *                                                             the agent's number in place of a version
 *
 * Between two agents, by a connection as with the coordinator (role node):
 * node -> node above it
 *   JOIN number                                               first line; the number is that of BELOW
 *   LINES ranks line (TAB ranks line)...                      joined with lines of others, for the coordinator. The
 *                                                             times in them go on in the clock of the node above
 *   TIME time                                                 as to the coordinator
 * node -> node below it
 *   LINES ranks line (TAB ranks line)...                      the part of a LINES that is for its ranks
 *   UNLED                                                     the coordinator is lost. If the connection ends without
 *                                                             it, the node above is lost
 *
 * command -> coordinator: one request line, then answers until the server closes
 *   CHECKPOINT then(continue|exit|hold) child_grace_ms | RECENT within_ms | STATUS [ms] | STOP checkpoint(0|1)
 *                                                             hold: the ranks stay stopped until they are killed (STOP
 *                                                             0)
 *   STOP next | STOP before after_ms moment | STOP cancel       exit with the next checkpoint that others ask for; or
 *                                                             before so many ms have passed; take that back
 * coordinator -> command
 *   PROGRESS text | RESULT ok path [remark] | RESULT failed reason | RESULT died reason | JSON text
 *                                                             remark: how long the job was paused, of a checkpoint that
 *                                                             was written beside the program
 *                                                             died: ranks have died; perhaps they were killed and
 *                                                             restarted, and this is the earlier coordinator
 *
 * Collectors send recordings of a host to commands on others (manapy/ckpt/collectors.py). A stream is the input and
 * output of one collector; data is base64.
 * command -> coordinator
 *   COLLECT host                                              start a collector on this host of the job
 *   ASK data                                                  bytes for its input
 * coordinator -> command
 *   COLLECTING                                                it is being started: PIECE and ASK may follow
 *   PIECE data                                                the next bytes of its output
 * coordinator -> node
 *   COLLECT stream                                            start a collector
 *   ASK stream data                                           bytes for its input
 *   MORE stream                                               the last piece was taken
 *   LEAVE stream                                              end it
 * node -> coordinator
 *   PIECE stream data                                         the next bytes of its output; one more only after MORE
 *   ENDED stream                                              it has ended, or could not be started
 *
 * RDMA: the agent that the ranks of a host share (manapy/rdma) is a part of the coordinator, or of the node's agent.
 * command -> coordinator
 *   SERVE host                                                have it on this host of the job. RESULT (with an empty
 *                                                             path) when it serves
 * coordinator -> node
 *   SERVE job store                                           start it; what it calls the job and its store
 *   KEYED number OK|LOST fields                               answer to KEYS
 * node -> coordinator
 *   SERVES reason                                             it serves (empty), or why it cannot
 *   KEYS number request fields                                of its store, the coordinator (manapy/rdma/central.py)
 *
 * Local storage (manapy/ckpt/coordinator/levels). The words of an order are strings, as are those of its
 * answer; manapy/ckpt/store/local.py has the orders. Images move between hosts by other connections (ckpt/transfer.py).
 * coordinator -> node
 *   STORE number order words...                               do this with the local storage of your host
 * node -> coordinator
 *   STORED number ok words...|failed reason                   answer to STORE
 * command -> coordinator
 *   FETCH rank host                                           a rank of a restart asks where its image is
 * coordinator -> command
 *   FOUND checkpoint image [remark]                           or RESULT failed reason; when all ranks have asked. The
 *                                                             checkpoint may be older than the one that was asked for:
 *                                                             the remark says so
 *
 * An agent below another one gets and sends these lines through FOR and FROM.
 */
#ifndef MANAPY_CONTROL_H
#define MANAPY_CONTROL_H

#define MPY_PROTOCOL_VERSION 11
#define MPY_LINE_MAX (1 << 20)
#define MPY_SECRET_BYTES 32
#define MPY_INIT_MS 2000
/* Exit code of the ranks after `manapy checkpoint --then exit`. */
#define MPY_EXIT_CHECKPOINTED 0

#endif
