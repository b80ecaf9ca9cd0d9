/* What callers get wrong, and what takes its time: each is a number, with words that name what is wrong. */
#include <kvrail.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEN = 1 << 20 };

static int line_of_caller;

static void expect(kvrail_status got, kvrail_status wanted, const char *words) {
  if (got == wanted && (words == NULL || strstr(kvrail_error(), words) != NULL)) return;
  fprintf(stderr, "line %d: %s (%s), wanted %s (%s)\n", line_of_caller, kvrail_status_name(got), kvrail_error(),
          kvrail_status_name(wanted), words ? words : "");
  exit(1);
}

#define EXPECT(call, wanted, words) (line_of_caller = __LINE__, expect((call), (wanted), (words)))
#define CHECK(holds) (line_of_caller = __LINE__, (holds) ? (void)0 : (fprintf(stderr, "line %d\n", __LINE__), exit(1)))

static void count(void *context) { ++*(int *)context; }

static void *say_nothing(void *unused) {
  (void)unused;
  CHECK(strcmp(kvrail_error(), "") == 0);
  return NULL;
}

static void settings(void) {
  kvrail_engine *engine = NULL;
  kvrail_config config;
  kvrail_config_init(&config);
  EXPECT(kvrail_engine_start(&config, NULL), KVRAIL_E_INVALID_ARGUMENT, "engine: is NULL");
  config.size = 4;
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "setting size");
  kvrail_config_init(&config);
  config.listen = "nowhere";
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "setting listen");
  config.listen = "\xff";
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_INVALID_ARGUMENT, "listen: is not UTF-8");
  kvrail_config_init(&config);
  config.tcp_rails = "10.0.0.1, 10.0.0.2/99";
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "the prefix");
  kvrail_config_init(&config);
  config.rdma_rails = "mlx5_0, mlx5_1:x";
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "the port");
  kvrail_config_init(&config);
  config.transports = KVRAIL_RDMA;
  config.rdma_rails = "no-such-nic";
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_OS, "RDMA");
  kvrail_config_init(&config);
  config.transports = 8;
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "setting transports");
  config.transports = 0;
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "none is given");
  kvrail_config_init(&config);
  config.streams_per_peer = 300;
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_CONFIG, "streams_per_peer");
  kvrail_config_init(&config);
  config.listen = "203.0.113.1:1";
  EXPECT(kvrail_engine_start(&config, &engine), KVRAIL_E_OS, "binding the listener");
  CHECK(engine == NULL);
  pthread_t other;
  CHECK(pthread_create(&other, NULL, say_nothing, NULL) == 0 && pthread_join(other, NULL) == 0);
}

static void nothing(void) {
  size_t n;
  uint8_t byte;
  EXPECT(kvrail_engine_stop(NULL, 0), KVRAIL_E_INVALID_ARGUMENT, "engine: is NULL");
  EXPECT(kvrail_lease_revoke(NULL, 0, NULL), KVRAIL_E_INVALID_ARGUMENT, "lease: is NULL");
  EXPECT(kvrail_transfer_wait(NULL, 0), KVRAIL_E_INVALID_ARGUMENT, "transfer: is NULL");
  EXPECT(kvrail_events_take(NULL, NULL, 0, &n), KVRAIL_E_INVALID_ARGUMENT, "events: is NULL");
  EXPECT(kvrail_ticket_read(NULL, 3, NULL), KVRAIL_E_INVALID_ARGUMENT, "ticket: is NULL");
  EXPECT(kvrail_lease_ticket(NULL, &byte, 1, &n), KVRAIL_E_INVALID_ARGUMENT, "lease: is NULL");
  CHECK(kvrail_engine_generation(NULL) == 0 && kvrail_region_base(NULL) == NULL && kvrail_region_len(NULL) == 0);
  CHECK(kvrail_events_fd(NULL) == -1 && kvrail_lease_is_over(NULL) == 1 && kvrail_peer_is_alive(NULL) == 0);
  kvrail_engine_free(NULL);
  kvrail_region_free(NULL);
  kvrail_lease_free(NULL);
  kvrail_ticket_free(NULL);
  kvrail_peer_free(NULL);
  kvrail_ops_free(NULL);
  kvrail_transfer_free(NULL);
  kvrail_events_free(NULL);
  kvrail_transfer_cancel(NULL);
  CHECK(strcmp(kvrail_status_name(KVRAIL_E_STALE), "stale") == 0 && kvrail_status_name(77) == NULL);
  CHECK(strcmp(kvrail_op_status_name(KVRAIL_OP_IN_DOUBT), "in_doubt") == 0 && kvrail_op_status_name(99) == NULL);
}

int main(void) {
  settings();
  nothing();

  kvrail_engine *owner, *writer;
  kvrail_config config;
  kvrail_config_init(&config);
  config.transports = KVRAIL_TCP;
  EXPECT(kvrail_engine_start(&config, &owner), KVRAIL_OK, NULL);
  EXPECT(kvrail_engine_start(&config, &writer), KVRAIL_OK, NULL);
  char address[KVRAIL_ADDRESS_MAX];
  EXPECT(kvrail_engine_address(owner, address, 3), KVRAIL_E_TOO_SMALL, "bytes are wanted");
  EXPECT(kvrail_engine_address(owner, address, sizeof address), KVRAIL_OK, NULL);

  /* memory: refused memory is not released, registered memory once */
  int released = 0;
  uint8_t *pool = calloc(1, LEN);
  kvrail_region *region = NULL, *target;
  EXPECT(kvrail_region_register(NULL, LEN, count, &released, &region), KVRAIL_E_INVALID_ARGUMENT, "base: is NULL");
  EXPECT(kvrail_region_register(pool, 0, count, &released, &region), KVRAIL_E_MEMORY, "0 bytes");
  EXPECT(kvrail_region_register(pool, SIZE_MAX, count, &released, &region), KVRAIL_E_MEMORY, "bytes");
  EXPECT(kvrail_region_allocate(owner, LEN, 9, &region), KVRAIL_E_INVALID_ARGUMENT, "kind");
  EXPECT(kvrail_region_allocate(owner, 0, KVRAIL_MEMORY_HOST, &region), KVRAIL_E_MEMORY, "0 bytes");
  CHECK(released == 0 && region == NULL);
  EXPECT(kvrail_region_register(pool, LEN, count, &released, &region), KVRAIL_OK, NULL);
  EXPECT(kvrail_region_allocate(owner, LEN, KVRAIL_MEMORY_HOST, &target), KVRAIL_OK, NULL);

  /* leases and tickets */
  kvrail_lease *lease;
  kvrail_range past = {LEN - 1, 2}, half = {0, LEN / 2};
  EXPECT(kvrail_lease_grant(owner, target, &past, 1, KVRAIL_ACCESS_WRITE, 1000, &lease), KVRAIL_E_BAD_RANGE, "passes the end");
  EXPECT(kvrail_lease_grant(owner, target, NULL, 1, KVRAIL_ACCESS_WRITE, 1000, &lease), KVRAIL_E_INVALID_ARGUMENT, "ranges");
  EXPECT(kvrail_lease_grant(owner, target, &half, 0, KVRAIL_ACCESS_WRITE, 1000, &lease), KVRAIL_E_BAD_RANGE, "at least one");
  EXPECT(kvrail_lease_grant(owner, target, &half, 1, 7, 1000, &lease), KVRAIL_E_INVALID_ARGUMENT, "access");
  EXPECT(kvrail_lease_grant(owner, target, &half, 1, KVRAIL_ACCESS_WRITE, 60000, &lease), KVRAIL_OK, NULL);
  uint8_t bytes[4096];
  size_t len;
  EXPECT(kvrail_lease_ticket(lease, NULL, 0, &len), KVRAIL_E_TOO_SMALL, "are wanted");
  CHECK(len > 0 && len < sizeof bytes);
  EXPECT(kvrail_lease_ticket(lease, bytes, sizeof bytes, &len), KVRAIL_OK, NULL);
  kvrail_ticket *ticket;
  EXPECT(kvrail_ticket_read(bytes, len - 1, &ticket), KVRAIL_E_BAD_TICKET, "intact");
  EXPECT(kvrail_ticket_read(bytes, len, &ticket), KVRAIL_OK, NULL);

  /* peers */
  kvrail_peer *peer;
  EXPECT(kvrail_connect(writer, "localhost:1", 0, &peer), KVRAIL_E_INVALID_ARGUMENT, "ADDRESS:PORT");
  EXPECT(kvrail_connect(writer, NULL, 0, &peer), KVRAIL_E_INVALID_ARGUMENT, "address: is NULL");
  EXPECT(kvrail_connect(writer, "127.0.0.1:1", 0, &peer), KVRAIL_E_UNREACHABLE, "127.0.0.1:1");
  EXPECT(kvrail_connect(writer, address, kvrail_engine_generation(owner) ^ 1, &peer), KVRAIL_E_WRONG_GENERATION, "generation");
  EXPECT(kvrail_connect(writer, address, 0, &peer), KVRAIL_OK, NULL);
  CHECK(kvrail_peer_is_alive(peer) && kvrail_peer_generation(peer) == kvrail_engine_generation(owner));

  /* requests */
  kvrail_op op = {{0, 4096, 0, 1, 0}, {0, 4096, 0, 1, 0}}, outside = op, unlike = op;
  outside.remote.offset = LEN / 2;
  unlike.remote.len = 1;
  kvrail_ops *good, *bad, *odd;
  EXPECT(kvrail_ops_new(&op, 1, &good), KVRAIL_OK, NULL);
  EXPECT(kvrail_ops_new(&outside, 1, &bad), KVRAIL_OK, NULL);
  EXPECT(kvrail_ops_new(&unlike, 1, &odd), KVRAIL_OK, NULL);
  kvrail_request request = {0};
  kvrail_transfer *transfer = NULL;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_INVALID_ARGUMENT, "request.size");
  request.size = sizeof request;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_INVALID_ARGUMENT, "request.region");
  request.region = region;
  request.ticket = ticket;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_INVALID_ARGUMENT, "request.ops");
  request.ops = bad;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_OUTSIDE_LEASE, "op 0");
  request.ops = odd;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_BAD_OP, "op 0");
  request.ops = good;
  request.direction = KVRAIL_READ;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_WRONG_ACCESS, "direction");
  request.direction = KVRAIL_WRITE;
  request.transfer_class = 9;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_INVALID_ARGUMENT, "transfer_class");
  request.transfer_class = KVRAIL_CLASS_CONTROL;
  request.notification = bytes;
  request.notification_len = KVRAIL_NOTIFICATION_MAX + 1;
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_NOTIFY_TOO_LONG, "4097");
  CHECK(transfer == NULL);

  /* notifications: watched before they come, not lost for want of room, taken once */
  kvrail_events *events;
  uint64_t token, from;
  EXPECT(kvrail_events_new(&events), KVRAIL_OK, NULL);
  EXPECT(kvrail_notification_watch(owner, events, 5), KVRAIL_OK, NULL);
  EXPECT(kvrail_events_take(events, &token, 1, &len), KVRAIL_OK, NULL);
  CHECK(len == 0);
  request.notification_len = 3;
  request.notification = (const uint8_t *)"yes";
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_OK, NULL);
  EXPECT(kvrail_transfer_wait(transfer, 20000), KVRAIL_OK, NULL);
  EXPECT(kvrail_transfer_wait(transfer, 0), KVRAIL_OK, NULL);
  EXPECT(kvrail_transfer_quiesce(transfer, 20000), KVRAIL_OK, NULL);
  EXPECT(kvrail_transfer_ops(transfer, NULL, 0, &len), KVRAIL_E_TOO_SMALL, "1 are there");
  EXPECT(kvrail_notification_receive(owner, 0, &from, bytes, 16, &len), KVRAIL_E_TOO_SMALL, "4096");
  uint8_t said[KVRAIL_NOTIFICATION_MAX];
  EXPECT(kvrail_notification_receive(owner, 20000, &from, said, sizeof said, &len), KVRAIL_OK, NULL);
  CHECK(len == 3 && memcmp(said, "yes", 3) == 0 && from == kvrail_engine_generation(writer));
  EXPECT(kvrail_notification_receive(owner, 10, NULL, said, sizeof said, &len), KVRAIL_PENDING, NULL);
  EXPECT(kvrail_events_take(events, &token, 1, &len), KVRAIL_OK, NULL);
  CHECK(len == 1 && token == 5);

  /* A watch of what is there already tells at once, and what it had to look at is received. */
  kvrail_transfer_free(transfer);
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_OK, NULL);
  EXPECT(kvrail_transfer_wait(transfer, 20000), KVRAIL_OK, NULL);
  EXPECT(kvrail_notification_watch(owner, events, 6), KVRAIL_OK, NULL);
  EXPECT(kvrail_transfer_watch(transfer, events, 7), KVRAIL_OK, NULL);
  EXPECT(kvrail_lease_watch(lease, events, 8), KVRAIL_OK, NULL);
  uint64_t tokens[4];
  EXPECT(kvrail_events_take(events, tokens, 4, &len), KVRAIL_OK, NULL);
  CHECK(len == 2 && tokens[0] == 6 && tokens[1] == 7);
  EXPECT(kvrail_notification_receive(owner, 0, NULL, said, sizeof said, &len), KVRAIL_OK, NULL);

  /* the end of a lease, of registered memory, of an engine */
  uint64_t landed;
  EXPECT(kvrail_lease_revoke(lease, 20000, &landed), KVRAIL_OK, NULL);
  CHECK(landed == 8192 && kvrail_lease_bytes_landed(lease) == 8192 && kvrail_lease_is_over(lease));
  EXPECT(kvrail_events_take(events, tokens, 4, &len), KVRAIL_OK, NULL);
  CHECK(len == 1 && tokens[0] == 8);
  kvrail_transfer_free(transfer);
  EXPECT(kvrail_engine_stop(writer, 20000), KVRAIL_OK, NULL);
  EXPECT(kvrail_submit(writer, peer, &request, &transfer), KVRAIL_E_STOPPED, "shut down");
  CHECK(released == 0);
  kvrail_region_free(region);
  CHECK(released == 1);
  EXPECT(kvrail_engine_stop(owner, 20000), KVRAIL_OK, NULL);
  kvrail_lease *late;
  EXPECT(kvrail_lease_grant(owner, target, &half, 1, KVRAIL_ACCESS_WRITE, 1000, &late), KVRAIL_E_STOPPED, "shut down");

  kvrail_events_free(events);
  kvrail_ops_free(good);
  kvrail_ops_free(bad);
  kvrail_ops_free(odd);
  kvrail_peer_free(peer);
  kvrail_ticket_free(ticket);
  kvrail_lease_free(lease);
  kvrail_region_free(target);
  kvrail_engine_free(writer);
  kvrail_engine_free(owner);
  CHECK(released == 1);
  free(pool);
  printf("all is as promised\n");
  return 0;
}
