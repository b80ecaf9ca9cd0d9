/* kvrail: the transfer engine for C. Moves memory between processes and machines under leases.
 *
 * Link with -lkvrail_c (cargo build --release -p kvrail-c makes libkvrail_c.so and libkvrail_c.a). Linux.
 *
 * Units      Offsets and lengths are bytes. Times are milliseconds where a name ends in _ms, nanoseconds in _ns.
 * Statuses   0 is well, positive is not over yet, negative is an error. kvrail_error() has the words for the last error of
 *            the calling thread. A function that fails has changed nothing and has written no result, unless it says so.
 * Handles    Are made by one function and freed by the one of their name, once; NULL may be freed. What an engine still
 *            needs of a freed handle lives on inside. Arguments that are handles must be live or NULL; NULL is an error
 *            (KVRAIL_E_INVALID_ARGUMENT), or where a function has no status, its stated value.
 * Threads    Every function may be called by any thread, and handles may be shared by threads. A handle may be freed when no
 *            other thread is inside a function with it.
 * Blocking   Only functions with timeout_ms block (negative: no bound; 0: only look), and kvrail_connect, within the engine's
 *            connect_timeout_ms. A wait whose bound came first has changed nothing: wait again.
 * Memory     What is submitted or lent is touched by the engine's threads, and by peers, until the engine says that it is
 *            not: kvrail_transfer_quiesce, kvrail_lease_revoke, or the release function of registered memory. A transfer that
 *            ended well has quiesced.
 * Processes  Make engines after fork, not before: a forked child has no engine's threads.
 */
#ifndef KVRAIL_H
#define KVRAIL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- statuses ------------------------------------------------------------------------------------------------------ */

#define KVRAIL_ABI_VERSION 1

typedef int32_t kvrail_status;

enum {
  KVRAIL_OK = 0,
  KVRAIL_PENDING = 1, /* not over yet, or nothing there */

  /* any function */
  KVRAIL_E_INVALID_ARGUMENT = -1, /* an argument makes no sense; the text names it */
  KVRAIL_E_TOO_SMALL = -2,        /* a buffer is too small for what is to go into it */
  KVRAIL_E_CONFIG = -3,           /* a setting makes no sense; the text names it */
  KVRAIL_E_OS = -4,               /* the operating system refused */
  KVRAIL_E_MEMORY = -5,           /* memory could not be had, or cannot be registered */
  KVRAIL_E_STOPPED = -6,          /* the engine is shut down */
  KVRAIL_E_LIMIT = -7,            /* a bound of the engine would be passed; try again when something has ended */
  KVRAIL_E_INTERNAL = -8,         /* a fault of kvrail itself */
  KVRAIL_E_UNKNOWN = -9,          /* an error that this version has no number for */

  /* kvrail_connect */
  KVRAIL_E_UNREACHABLE = -20,       /* nobody answered, or the connection broke */
  KVRAIL_E_HANDSHAKE_TIMEOUT = -21, /* the handshake did not end in time */
  KVRAIL_E_NOT_AN_ENGINE = -22,     /* what answered is not an engine */
  KVRAIL_E_VERSION = -23,           /* no common version of the protocol */
  KVRAIL_E_WRONG_GENERATION = -24,  /* the engine there is not the expected one: it restarted */
  KVRAIL_E_NO_TRANSPORT = -25,      /* no transport in common */
  KVRAIL_E_MYSELF = -26,            /* that address is this engine */
  KVRAIL_E_REFUSED = -27,           /* the peer refused the connection */

  /* kvrail_lease_grant, kvrail_ticket_read */
  KVRAIL_E_BAD_RANGE = -40,      /* no range, an empty one, or one past the end of its region */
  KVRAIL_E_BAD_TICKET = -41,     /* bytes that are no intact ticket */
  KVRAIL_E_TICKET_VERSION = -42, /* a ticket of a version that this build does not know */

  /* kvrail_submit: nothing was posted, the memory is free */
  KVRAIL_E_BAD_OP = -60,          /* a descriptor is wrong; the text says which and how */
  KVRAIL_E_OUTSIDE_LEASE = -61,   /* a descriptor reaches outside the lent ranges */
  KVRAIL_E_WRONG_ACCESS = -62,    /* a write under a lease for reading, or the other way round */
  KVRAIL_E_WRONG_PEER = -63,      /* the ticket is of another engine, or of this one before it restarted */
  KVRAIL_E_NOTIFY_TOO_LONG = -64, /* more than KVRAIL_NOTIFICATION_MAX bytes */
  KVRAIL_E_PRIVATE_MEMORY = -65,  /* only shared memory joins the two, and the bytes come from private memory */
  KVRAIL_E_HOPELESS = -66,        /* it could not end before its deadline; also an end of a transfer */
  KVRAIL_E_PEER_LOST = -67,       /* the peer is gone, connect again; also an end of a transfer */

  /* kvrail_transfer_wait */
  KVRAIL_E_STALE = -80,            /* the lease was gone: a write did not land, what was read must not be believed */
  KVRAIL_E_REFUSED_BY_OWNER = -81, /* the owner refused for another reason */
  KVRAIL_E_DEADLINE = -82,         /* it did not end in time */
  KVRAIL_E_CANCELLED = -83,        /* it was cancelled */
  KVRAIL_E_FAULT = -84,            /* no path was left */
  KVRAIL_E_CORRUPT = -85,          /* what arrived was damaged, as often as it was sent */
  KVRAIL_E_NOTIFY_REFUSED = -86    /* all bytes are visible, but the peer's notification queue was full */
};

/* How one descriptor of a transfer ended: one byte of kvrail_transfer_ops. */
enum {
  KVRAIL_OP_LANDED = 0,       /* all its bytes are visible */
  KVRAIL_OP_NOT_SENT = 1,     /* its destination is untouched */
  KVRAIL_OP_IN_DOUBT = 2,     /* its destination holds old and new bytes */
  KVRAIL_OP_LOCAL_FAULT = 3,  /* from here on: it failed, for this reason */
  KVRAIL_OP_REMOTE_FAULT = 4,
  KVRAIL_OP_PATH_FAULT = 5,
  KVRAIL_OP_TIMEOUT = 6,
  KVRAIL_OP_CORRUPT = 7,
  KVRAIL_OP_STALE = 8,
  KVRAIL_OP_OUTSIDE_LEASE = 9,
  KVRAIL_OP_MALFORMED = 10,
  KVRAIL_OP_PEER_LOST = 11
};

/* Number of the ABI of the library; compare it with KVRAIL_ABI_VERSION. */
uint32_t kvrail_abi_version(void);
/* Version of the library. The text is static. */
const char *kvrail_version(void);
/* Name of a status, "stale" say. The text is static; NULL for a number that is no status. */
const char *kvrail_status_name(kvrail_status status);
/* The same of an op's status. */
const char *kvrail_op_status_name(uint8_t status);
/* Words for the calling thread's last error, until its next one; "" if there was none. */
const char *kvrail_error(void);

/* ---- handles ------------------------------------------------------------------------------------------------------- */

typedef struct kvrail_engine kvrail_engine;     /* moves bytes; one for a process is enough */
typedef struct kvrail_region kvrail_region;     /* memory that can be lent and moved */
typedef struct kvrail_lease kvrail_lease;       /* memory that is lent, at its owner */
typedef struct kvrail_ticket kvrail_ticket;     /* the right to a lease, at its holder */
typedef struct kvrail_peer kvrail_peer;         /* a connected engine */
typedef struct kvrail_ops kvrail_ops;           /* a list of descriptors */
typedef struct kvrail_transfer kvrail_transfer; /* a batch that moves */
typedef struct kvrail_events kvrail_events;     /* what has ended, behind a descriptor */

/* ---- engines ------------------------------------------------------------------------------------------------------- */

#define KVRAIL_SHM 1u /* shared memory of one host */
#define KVRAIL_TCP 2u
#define KVRAIL_RDMA 4u
#define KVRAIL_ADDRESS_MAX 64u /* room for an address as text, its NUL included */

/* Settings; kvrail_config_init fills in what holds where nothing is said. */
typedef struct kvrail_config {
  uint32_t size;               /* sizeof(kvrail_config) */
  uint32_t transports;         /* KVRAIL_SHM, KVRAIL_TCP and KVRAIL_RDMA, or-ed */
  const char *listen;          /* where peers connect to, ADDRESS:PORT, port 0 for a free one; NULL is 127.0.0.1:0 */
  const char *tcp_rails;       /* local addresses for TCP, ADDRESS[/PREFIX][@DEVICE][#RAIL],…; NULL: as the system routes */
  const char *rdma_rails;      /* NICs for RDMA, DEVICE[:PORT][@GID][#RAIL],…; NULL: every one with an active port */
  uint32_t streams_per_peer;   /* of each transport, 1 to 32 */
  uint32_t workers;            /* threads that move bytes, 1 to 32 */
  uint32_t checksum;           /* not 0: CRC32 over each slice, checked where it lands */
  uint32_t guard_leases;       /* not 0: leases over RDMA have keys of their own; the NIC turns away what is outside */
  uint32_t heartbeat_ms;       /* how often each side says that it lives */
  uint32_t peer_timeout_ms;    /* silence after which a peer counts as dead; two heartbeats at least */
  uint32_t connect_timeout_ms; /* bound of kvrail_connect */
  uint64_t peers_max;          /* sessions at most */
  uint64_t leases_max;         /* leases at most */
  uint64_t transfers_max;      /* transfers under way at most */
  uint64_t notifications_max;  /* notifications that wait to be received, at most */
} kvrail_config;

void kvrail_config_init(kvrail_config *config);
/* Starts an engine: its listener and its threads. config may be NULL, and is not kept. */
kvrail_status kvrail_engine_start(const kvrail_config *config, kvrail_engine **engine);
/* Where peers connect to, ADDRESS:PORT. KVRAIL_ADDRESS_MAX bytes are always enough. */
kvrail_status kvrail_engine_address(const kvrail_engine *engine, char *text, size_t capacity);
/* Random number of this start: after a restart it is another. 0 for NULL. */
uint64_t kvrail_engine_generation(const kvrail_engine *engine);
/* Ends sessions, transfers and threads; what was lent is fenced when it returns KVRAIL_OK. */
kvrail_status kvrail_engine_stop(const kvrail_engine *engine, int64_t timeout_ms);
/* The last handle stops the engine. Leases, transfers and peers that still have handles keep it. */
void kvrail_engine_free(kvrail_engine *engine);

/* ---- memory -------------------------------------------------------------------------------------------------------- */

#define KVRAIL_MEMORY_SHARED 0u /* a memfd: peers on the same host can map it read-only and copy from it */
#define KVRAIL_MEMORY_HOST 1u   /* private to this process: its bytes leave over TCP */

/* Maps len zeroed bytes, aligned to 2 MiB. */
kvrail_status kvrail_region_allocate(const kvrail_engine *engine, size_t len, uint32_t kind, kvrail_region **region);

/* Called once, when no engine touches registered memory any more, by whichever thread lets go of it last. It must not block
 * and must not call kvrail. */
typedef void (*kvrail_release)(void *context);

/* Makes a region of memory that the caller has: nothing is copied, the bytes are sent from and received into where they lie.
 * They must stay mapped (readable, and writable if they are lent for writing or read into) until release is called. Without a
 * release function they must stay for ever. If this fails, release is not called. Only TCP sends from it; shared memory of the
 * same host can be received into it. */
kvrail_status kvrail_region_register(void *base, size_t len, kvrail_release release, void *context,
                                     kvrail_region **region);
void *kvrail_region_base(const kvrail_region *region); /* NULL for NULL */
size_t kvrail_region_len(const kvrail_region *region); /* 0 for NULL */
/* The memory goes when no lease and no transfer needs it any more. */
void kvrail_region_free(kvrail_region *region);

/* ---- leases and tickets -------------------------------------------------------------------------------------------- */

#define KVRAIL_ACCESS_WRITE 0u /* the holder may write */
#define KVRAIL_ACCESS_READ 1u  /* the holder may read */

typedef struct kvrail_range {
  uint64_t offset;
  uint64_t len;
} kvrail_range;

/* Lends ranges of a region for ttl_ms; then the lease ends by itself. Overlapping and adjacent ranges are merged. */
kvrail_status kvrail_lease_grant(const kvrail_engine *engine, const kvrail_region *region, const kvrail_range *ranges,
                                 size_t count, uint32_t access, uint64_t ttl_ms, kvrail_lease **lease);
/* The ticket, as bytes for whatever way the two sides talk. It holds a secret: who has it may use the lease. len gets the
 * number of bytes, also with KVRAIL_E_TOO_SMALL (capacity 0 asks for it). */
kvrail_status kvrail_lease_ticket(const kvrail_lease *lease, uint8_t *bytes, size_t capacity, size_t *len);
/* Ends the lease. KVRAIL_OK: no byte can land under it any more. It waits for no peer. bytes_landed may be NULL. */
kvrail_status kvrail_lease_revoke(const kvrail_lease *lease, int64_t timeout_ms, uint64_t *bytes_landed);
/* Payload bytes that have landed under it; retries count again. */
uint64_t kvrail_lease_bytes_landed(const kvrail_lease *lease);
/* Not 0 when it has ended, by revocation or by its time; 1 for NULL. */
int32_t kvrail_lease_is_over(const kvrail_lease *lease);
/* token goes to events when the lease has ended and is fenced, whoever ended it. */
kvrail_status kvrail_lease_watch(const kvrail_lease *lease, const kvrail_events *events, uint64_t token);
/* A lease that has not ended is revoked; its memory stays mapped until it is fenced. */
void kvrail_lease_free(kvrail_lease *lease);

/* Reads what kvrail_lease_ticket wrote. bytes are not kept. */
kvrail_status kvrail_ticket_read(const uint8_t *bytes, size_t len, kvrail_ticket **ticket);
/* Generation of the engine that lends; 0 for NULL. */
uint64_t kvrail_ticket_generation(const kvrail_ticket *ticket);
void kvrail_ticket_free(kvrail_ticket *ticket);

/* ---- peers --------------------------------------------------------------------------------------------------------- */

/* Connects to the engine at ADDRESS:PORT (no name), or finds the session that is there. generation 0 takes whichever engine
 * answers. Blocks, within connect_timeout_ms. */
kvrail_status kvrail_connect(const kvrail_engine *engine, const char *address, uint64_t generation, kvrail_peer **peer);
/* Random number of the peer's start; 0 for NULL. */
uint64_t kvrail_peer_generation(const kvrail_peer *peer);
/* Not 0 while the session stands. One that is gone stays gone: connect again. */
int32_t kvrail_peer_is_alive(const kvrail_peer *peer);
/* The session stays in the engine. */
void kvrail_peer_free(kvrail_peer *peer);

/* ---- transfers ----------------------------------------------------------------------------------------------------- */

/* One side of a descriptor: count runs of len bytes, stride bytes from start to start, the first at offset. */
typedef struct kvrail_strided {
  uint64_t offset;
  uint64_t len;
  uint64_t stride; /* at least len; of no meaning where count is 1 */
  uint32_t count;
  uint32_t reserved; /* 0 */
} kvrail_strided;

/* len and count must be the same on both sides. */
typedef struct kvrail_op {
  kvrail_strided local;  /* in the region of the request */
  kvrail_strided remote; /* in the lessor's region */
} kvrail_op;

/* Copies count descriptors into a list that can be submitted many times. */
kvrail_status kvrail_ops_new(const kvrail_op *ops, size_t count, kvrail_ops **list);
/* Transfers that use the list keep it. */
void kvrail_ops_free(kvrail_ops *list);

#define KVRAIL_WRITE 0u /* local to remote */
#define KVRAIL_READ 1u  /* remote to local */

#define KVRAIL_CLASS_KV 0u          /* KV cache that a request waits for */
#define KVRAIL_CLASS_CONTROL 1u     /* small and urgent, before all others */
#define KVRAIL_CLASS_REPLICATION 2u /* prefixes copied ahead of demand */
#define KVRAIL_CLASS_WEIGHTS 3u     /* model weights */

#define KVRAIL_CHECKSUM_DEFAULT (-1)  /* as the engine is set */
#define KVRAIL_NOTIFICATION_MAX 4096u /* longest notification, bytes */

/* Set all bytes to zero, then what is wanted; checksum 0 is none, KVRAIL_CHECKSUM_DEFAULT the engine's setting. */
typedef struct kvrail_request {
  uint32_t size;               /* sizeof(kvrail_request) */
  uint32_t direction;          /* KVRAIL_WRITE or KVRAIL_READ */
  const kvrail_region *region; /* local memory */
  const kvrail_ticket *ticket; /* the right to the remote memory */
  const kvrail_ops *ops;       /* what moves */
  uint64_t deadline_ms;        /* when it must have ended, from now; 0 is ten seconds */
  uint32_t transfer_class;     /* one of KVRAIL_CLASS_… */
  uint32_t tenant;             /* for whom; 0 is everybody who is not told apart */
  int32_t checksum;            /* 1, 0 or KVRAIL_CHECKSUM_DEFAULT */
  uint32_t notification_len;
  const uint8_t *notification; /* delivered to the peer when all bytes are visible there; NULL for none */
} kvrail_request;

/* How a transfer ended. */
typedef struct kvrail_report {
  kvrail_status status;    /* as kvrail_transfer_wait says it */
  uint32_t memory_is_free; /* not 0: local memory may be used again; otherwise after kvrail_transfer_quiesce */
  uint64_t bytes;          /* payload bytes that landed, each counted once */
  uint64_t retried_bytes;  /* bytes that were sent again */
  uint64_t queued_ns;      /* from submission to the first slice on the wire */
  uint64_t wire_ns;        /* from there to the last slice visible */
  uint64_t ops;            /* descriptors */
} kvrail_report;

/* Accepts a transfer, or refuses it; never blocks. Nothing of request is kept but what its handles stand for. */
kvrail_status kvrail_submit(const kvrail_engine *engine, const kvrail_peer *peer, const kvrail_request *request,
                            kvrail_transfer **transfer);
/* KVRAIL_OK: all bytes are visible where they go. KVRAIL_PENDING: the bound came first. Else why it failed. */
kvrail_status kvrail_transfer_wait(const kvrail_transfer *transfer, int64_t timeout_ms);
/* Stops what has not been sent; the transfer ends as KVRAIL_E_CANCELLED unless it was done. */
void kvrail_transfer_cancel(const kvrail_transfer *transfer);
/* KVRAIL_OK: nothing of the transfer can touch local memory any more. */
kvrail_status kvrail_transfer_quiesce(const kvrail_transfer *transfer, int64_t timeout_ms);
/* KVRAIL_PENDING while it has not ended. */
kvrail_status kvrail_transfer_report(const kvrail_transfer *transfer, kvrail_report *report);
/* How each descriptor ended, KVRAIL_OP_…, one byte each. count gets their number; with KVRAIL_E_TOO_SMALL the first capacity
 * ones are written. KVRAIL_PENDING while the transfer has not ended. */
kvrail_status kvrail_transfer_ops(const kvrail_transfer *transfer, uint8_t *statuses, size_t capacity, size_t *count);
/* token goes to events when the transfer has ended. A transfer has one watch: another takes its place. */
kvrail_status kvrail_transfer_watch(const kvrail_transfer *transfer, const kvrail_events *events, uint64_t token);
/* A transfer that has not ended is cancelled; the engine keeps its region until nothing can touch it. */
void kvrail_transfer_free(kvrail_transfer *transfer);

/* ---- notifications ------------------------------------------------------------------------------------------------- */

/* Takes the oldest notification. from (may be NULL) gets the sender's generation, len the length in bytes. capacity must be
 * KVRAIL_NOTIFICATION_MAX at least. KVRAIL_PENDING: none came within the bound. */
kvrail_status kvrail_notification_receive(const kvrail_engine *engine, int64_t timeout_ms, uint64_t *from, uint8_t *bytes,
                                          size_t capacity, size_t *len);
/* token goes to events when a notification can be received: once, then watch again. An engine has one watch. */
kvrail_status kvrail_notification_watch(const kvrail_engine *engine, const kvrail_events *events, uint64_t token);

/* ---- event loops --------------------------------------------------------------------------------------------------- */

/* A list of tokens, and a descriptor that is readable while it is not empty: give it to poll or epoll. The engine's threads
 * put tokens in and run nothing of the caller's. */
kvrail_status kvrail_events_new(kvrail_events **events);
/* Do not read from it; -1 for NULL. */
int32_t kvrail_events_fd(const kvrail_events *events);
/* Takes up to capacity tokens, oldest first; count gets their number, 0 if there is none. A token says that there is
 * something to look at. */
kvrail_status kvrail_events_take(const kvrail_events *events, uint64_t *tokens, size_t capacity, size_t *count);
/* The descriptor is closed when no watch is left either. */
void kvrail_events_free(kvrail_events *events);

#ifdef __cplusplus
}
#endif

#endif
