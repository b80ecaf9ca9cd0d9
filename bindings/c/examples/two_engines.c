/* Two processes, each with an engine. The parent lends memory, the child writes into it and says when it is done.
 *
 *     cc -Iinclude examples/two_engines.c -L../../target/release -lkvrail_c -o two_engines
 *
 * Shown: registered and allocated memory, a lease and its ticket as bytes, a strided list of descriptors, an event loop's
 * descriptor, a notification, and what a revoked lease does to a late writer. */
#include <kvrail.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 8, BLOCK = 16384, BLOCKS = 64, POOL = LAYERS * BLOCKS * BLOCK, TICKET_MAX = 4096 };

/* What the parent hands to the child, by a pipe here. */
struct offer {
  char address[KVRAIL_ADDRESS_MAX];
  size_t ticket_len;
  uint8_t ticket[TICKET_MAX];
};

static void must(kvrail_status status, const char *what) {
  if (status == KVRAIL_OK) return;
  fprintf(stderr, "%s: %s (%s)\n", what, kvrail_status_name(status), kvrail_error());
  exit(1);
}

static void check(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

static uint8_t pattern(size_t at) { return (uint8_t)((at * 2654435761u) >> 13); }

/* Even blocks of every layer here go to the blocks behind them there: one descriptor for a layer. */
static kvrail_ops *descriptors(void) {
  kvrail_op ops[LAYERS];
  memset(ops, 0, sizeof ops);
  for (size_t layer = 0; layer < LAYERS; layer++) {
    uint64_t start = layer * BLOCKS * BLOCK;
    kvrail_strided even = {start, BLOCK, 2 * BLOCK, BLOCKS / 2, 0};
    ops[layer].local = even;
    even.offset += BLOCK;
    ops[layer].remote = even;
  }
  kvrail_ops *list;
  must(kvrail_ops_new(ops, LAYERS, &list), "kvrail_ops_new");
  return list;
}

/* Waits as an event loop would: in poll, on a descriptor. */
static void wait_in_poll(const kvrail_events *events, uint64_t token) {
  struct pollfd fd = {kvrail_events_fd(events), POLLIN, 0};
  check(poll(&fd, 1, 20000) == 1, "the descriptor becomes readable");
  uint64_t tokens[4];
  size_t count;
  must(kvrail_events_take(events, tokens, 4, &count), "kvrail_events_take");
  check(count == 1 && tokens[0] == token, "the token is the one that was watched for");
}

static void let_go(void *context) { *(volatile int *)context = 1; }

static int child(int offers, int words) {
  struct offer offer;
  check(read(offers, &offer, sizeof offer) == (ssize_t)sizeof offer, "an offer comes");
  kvrail_engine *engine;
  must(kvrail_engine_start(NULL, &engine), "kvrail_engine_start");
  kvrail_peer *peer;
  must(kvrail_connect(engine, offer.address, 0, &peer), "kvrail_connect");
  kvrail_ticket *ticket;
  must(kvrail_ticket_read(offer.ticket, offer.ticket_len, &ticket), "kvrail_ticket_read");
  check(kvrail_ticket_generation(ticket) == kvrail_peer_generation(peer), "the ticket is the peer's");

  /* Memory of our own: nothing is copied on its way out. */
  uint8_t *pool = malloc(POOL);
  volatile int is_free = 0;
  for (size_t at = 0; at < POOL; at++) pool[at] = pattern(at);
  kvrail_region *region;
  must(kvrail_region_register(pool, POOL, let_go, (void *)&is_free, &region), "kvrail_region_register");
  check(kvrail_region_base(region) == pool, "the region is our memory");

  kvrail_ops *ops = descriptors();
  kvrail_request request;
  memset(&request, 0, sizeof request);
  request.size = sizeof request;
  request.direction = KVRAIL_WRITE;
  request.region = region;
  request.ticket = ticket;
  request.ops = ops;
  request.checksum = 1;
  request.notification = (const uint8_t *)"all there";
  request.notification_len = 9;
  kvrail_transfer *transfer;
  must(kvrail_submit(engine, peer, &request, &transfer), "kvrail_submit");

  kvrail_events *events;
  must(kvrail_events_new(&events), "kvrail_events_new");
  must(kvrail_transfer_watch(transfer, events, 42), "kvrail_transfer_watch");
  wait_in_poll(events, 42);
  must(kvrail_transfer_wait(transfer, 0), "kvrail_transfer_wait");
  kvrail_report report;
  must(kvrail_transfer_report(transfer, &report), "kvrail_transfer_report");
  uint8_t statuses[LAYERS];
  size_t count;
  must(kvrail_transfer_ops(transfer, statuses, LAYERS, &count), "kvrail_transfer_ops");
  for (size_t op = 0; op < count; op++) check(statuses[op] == KVRAIL_OP_LANDED, "each descriptor has landed");
  printf("child: %llu bytes of %zu descriptors landed, in %.2f ms on the wire\n", (unsigned long long)report.bytes, count,
         (double)report.wire_ns / 1e6);
  kvrail_transfer_free(transfer);

  /* The parent takes its memory back; a writer that does not know is told. */
  char word;
  check(read(offers, &word, 1) == 1, "the parent has revoked");
  must(kvrail_submit(engine, peer, &request, &transfer), "kvrail_submit");
  kvrail_status late = kvrail_transfer_wait(transfer, 20000);
  check(late == KVRAIL_E_STALE, "a write under a revoked lease is stale");
  printf("child: the late write is refused: %s (%s)\n", kvrail_status_name(late), kvrail_error());
  must(kvrail_transfer_quiesce(transfer, 20000), "kvrail_transfer_quiesce");

  kvrail_transfer_free(transfer);
  kvrail_events_free(events);
  kvrail_ops_free(ops);
  kvrail_ticket_free(ticket);
  kvrail_peer_free(peer);
  must(kvrail_engine_stop(engine, 20000), "kvrail_engine_stop");
  check(!is_free, "the region holds the memory");
  kvrail_region_free(region);
  check(is_free, "nothing touches our memory any more");
  free(pool);
  kvrail_engine_free(engine);
  check(write(words, "x", 1) == 1, "the parent listens");
  return 0;
}

static void parent(int offers, int words) {
  kvrail_engine *engine;
  must(kvrail_engine_start(NULL, &engine), "kvrail_engine_start");
  kvrail_region *pool;
  must(kvrail_region_allocate(engine, POOL, KVRAIL_MEMORY_SHARED, &pool), "kvrail_region_allocate");
  uint8_t *bytes = kvrail_region_base(pool);
  memset(bytes, 0xEE, POOL);
  kvrail_range all = {0, POOL};
  kvrail_lease *lease;
  must(kvrail_lease_grant(engine, pool, &all, 1, KVRAIL_ACCESS_WRITE, 60000, &lease), "kvrail_lease_grant");

  struct offer offer;
  memset(&offer, 0, sizeof offer);
  must(kvrail_engine_address(engine, offer.address, sizeof offer.address), "kvrail_engine_address");
  must(kvrail_lease_ticket(lease, offer.ticket, TICKET_MAX, &offer.ticket_len), "kvrail_lease_ticket");
  check(write(offers, &offer, sizeof offer) == (ssize_t)sizeof offer, "the child listens");

  uint8_t said[KVRAIL_NOTIFICATION_MAX];
  size_t len;
  uint64_t from;
  must(kvrail_notification_receive(engine, 20000, &from, said, sizeof said, &len), "kvrail_notification_receive");
  check(len == 9 && memcmp(said, "all there", 9) == 0, "the notification is what was said");
  for (size_t at = 0; at < POOL; at++) {
    size_t block = at / BLOCK % BLOCKS;
    uint8_t want = block % 2 == 1 ? pattern(at - BLOCK) : 0xEE;
    check(bytes[at] == want, "every byte is where it belongs, and no other was touched");
  }
  uint64_t landed;
  must(kvrail_lease_revoke(lease, 20000, &landed), "kvrail_lease_revoke");
  printf("parent: told \"%.*s\", every byte is right, %llu bytes landed under the lease\n", (int)len, (const char *)said,
         (unsigned long long)landed);
  check(landed == POOL / 2, "half of the pool was written");
  fflush(stdout);

  uint8_t *next = malloc(POOL);
  memset(bytes, 0x11, POOL); /* the memory's next use */
  memcpy(next, bytes, POOL);
  check(write(offers, "r", 1) == 1, "the child listens");
  char word;
  check(read(words, &word, 1) == 1, "the child is done");
  check(memcmp(next, bytes, POOL) == 0, "no late write has landed");
  printf("parent: no late write has landed\n");

  free(next);
  kvrail_lease_free(lease);
  kvrail_region_free(pool);
  kvrail_engine_free(engine);
}

int main(void) {
  check(kvrail_abi_version() == KVRAIL_ABI_VERSION, "header and library are of one ABI");
  int offers[2], words[2];
  check(pipe(offers) == 0 && pipe(words) == 0, "pipes");
  /* Before any engine is started: a forked child has none of the engine's threads. */
  pid_t pid = fork();
  check(pid >= 0, "fork");
  if (pid == 0) return child(offers[0], words[1]);
  close(words[1]);
  parent(offers[1], words[0]);
  int status;
  check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended well");
  return 0;
}
