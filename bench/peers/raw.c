// What plain code does with the same blocks, and what proves that they arrived: compiled by run.py, loaded by raw.py.
//
// Sockets: one thread a connection on each side, an equal share of the blocks each, gather writes out of the source and
// scatter reads into place, acknowledged when the last byte is in its place. Copies: threads that write into memory which
// another process has mapped. Threads and lists stand ready before a batch; nothing is allocated while bytes move.
//
// One batch at a time, one sending side a process: the harness asks for no more, so the state is static.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 8, BLOCKS_A_CALL = 256, BLOCKS_MAX = 1 << 20, BUFFER_BYTES = 4 << 20, SILENCE_S = 60 };

/// Blocks of one length, from `local` offsets to `remote` ones.
struct batch {
    char *source, *target;
    const uint64_t *local, *remote;
    uint64_t count, block;
};

// ---- contents --------------------------------------------------------------------------------------------------------

/// Blocks of words that depend on the seed, on the block's number and on their place.
void raw_fill(char *pool, const uint64_t *offsets, uint64_t count, uint64_t block, uint64_t seed) {
    for (uint64_t b = 0; b < count; b++) {
        uint64_t *words = (uint64_t *)(pool + offsets[b]), first = (seed << 40) + b * (block / 8);
        for (uint64_t i = 0; i < block / 8; i++) {
            uint64_t word = (first + i) * 0x9e3779b97f4a7c15u;
            words[i] = word ^ (word >> 29);
        }
    }
}

/// A checksum of each block that depends on every word and on its place; four lanes, so that it is as fast as memory.
void raw_sums(const char *pool, const uint64_t *offsets, uint64_t count, uint64_t block, uint64_t *sums) {
    for (uint64_t b = 0; b < count; b++) {
        const uint64_t *words = (const uint64_t *)(pool + offsets[b]);
        uint64_t lanes[4] = {1, 2, 3, 4};
        for (uint64_t i = 0; i + 4 <= block / 8; i += 4)
            for (int lane = 0; lane < 4; lane++) {
                uint64_t mixed = (lanes[lane] ^ words[i + lane]) * 0xff51afd7ed558ccdu;
                lanes[lane] = mixed ^ (mixed >> 32);
            }
        uint64_t sum = block;
        for (int lane = 0; lane < 4; lane++) sum = (sum ^ lanes[lane]) * 0xc4ceb9fe1a85ec53u;
        sums[b] = sum ^ (sum >> 31);
    }
}

/// CPU time of all threads of a process, seconds; negative where it is gone.
double raw_cpu_seconds(int pid) {
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &time)) return -1;
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// ---- threads that wait for a share of a batch --------------------------------------------------------------------------

typedef int work(int number, struct batch *share);

static struct helper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct batch share;
    work *todo;
    int number, result;
} helpers[THREADS_MAX];

static void *help(void *argument) {
    struct helper *own = argument;
    pthread_mutex_lock(&own->lock);
    for (;;) {
        while (!own->todo) pthread_cond_wait(&own->changed, &own->lock);
        pthread_mutex_unlock(&own->lock);
        int result = own->todo(own->number, &own->share);
        pthread_mutex_lock(&own->lock);
        own->result = result;
        own->todo = NULL;
        pthread_cond_signal(&own->changed);
    }
    return NULL;
}

/// Starts the threads beside the caller's own, which has number 0.
int raw_threads(int count) {
    if (count < 1 || count > THREADS_MAX) return EINVAL;
    for (int number = 1; number < count; number++) {
        struct helper *helper = &helpers[number];
        helper->number = number;
        pthread_mutex_init(&helper->lock, NULL);
        pthread_cond_init(&helper->changed, NULL);
        pthread_t thread;
        int failed = pthread_create(&thread, NULL, help, helper);
        if (failed) return failed;
    }
    return 0;
}

/// Lets `threads` threads do an equal share each, and ends when all have.
static int shared(work *todo, const struct batch *batch, int threads) {
    uint64_t each = (batch->count + (uint64_t)threads - 1) / (uint64_t)threads, first[THREADS_MAX];
    int used = 0, result = 0;
    for (uint64_t start = 0; start < batch->count; start += each) first[used++] = start;
    for (int number = used - 1; number >= 0; number--) {
        struct batch share = *batch;
        share.local += first[number];
        share.remote += first[number];
        share.count = number == used - 1 ? batch->count - first[number] : each;
        if (number == 0) {
            result = todo(0, &share);
            break;
        }
        struct helper *helper = &helpers[number];
        pthread_mutex_lock(&helper->lock);
        helper->share = share;
        helper->todo = todo;
        pthread_cond_signal(&helper->changed);
        pthread_mutex_unlock(&helper->lock);
    }
    for (int number = 1; number < used; number++) {
        struct helper *helper = &helpers[number];
        pthread_mutex_lock(&helper->lock);
        while (helper->todo) pthread_cond_wait(&helper->changed, &helper->lock);
        if (helper->result) result = helper->result;
        pthread_mutex_unlock(&helper->lock);
    }
    return result;
}

// ---- memcpy --------------------------------------------------------------------------------------------------------------

static int copy_share(int number, struct batch *share) {
    (void)number;
    for (uint64_t i = 0; i < share->count; i++)
        memcpy(share->target + share->remote[i], share->source + share->local[i], share->block);
    return 0;
}

int raw_copy(char *source, char *target, const uint64_t *local, const uint64_t *remote, uint64_t count, uint64_t block,
             int threads) {
    struct batch batch = {source, target, local, remote, count, block};
    int result = shared(copy_share, &batch, threads);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return result;
}

// ---- sockets -------------------------------------------------------------------------------------------------------------

/// Begins each share; the other destinations, if there are any, follow. A single block needs no second read.
struct header {
    uint64_t count, block, first;
};

/// The best settings that were found: cubic where there is one (a congestion control that paces is slower on loopback),
/// and buffers that hold some megabytes.
static int tune(int fd) {
    int on = 1, bytes = BUFFER_BYTES;
    struct timeval silence = {.tv_sec = SILENCE_S};
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
           setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) ||
           setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) ||
           setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
}

static int send_all(int fd, struct iovec *list, int length) {
    while (length > 0) {
        size_t some = (size_t)(length < BLOCKS_A_CALL ? length : BLOCKS_A_CALL);
        struct msghdr message = {.msg_iov = list, .msg_iovlen = some};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return errno ? errno : EPIPE;
        for (; length > 0 && (size_t)sent >= list->iov_len; list++, length--) sent -= (ssize_t)list->iov_len;
        if (length > 0) {
            list->iov_base = (char *)list->iov_base + sent;
            list->iov_len -= (size_t)sent;
        }
    }
    return 0;
}

static int receive_all(int fd, struct iovec *list, int length) {
    while (length > 0) {
        ssize_t got = readv(fd, list, length < BLOCKS_A_CALL ? length : BLOCKS_A_CALL);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return errno ? errno : EPIPE;
        for (; length > 0 && (size_t)got >= list->iov_len; list++, length--) got -= (ssize_t)list->iov_len;
        if (length > 0) {
            list->iov_base = (char *)list->iov_base + got;
            list->iov_len -= (size_t)got;
        }
    }
    return 0;
}

static int receive(int fd, void *bytes, size_t length) {
    struct iovec whole = {bytes, length};
    return receive_all(fd, &whole, 1);
}

static struct {
    char *pool;
    uint64_t bytes;
    int listener;
} sink;

/// Receives batches until the sender hangs up.
static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    uint64_t *places = malloc(BLOCKS_MAX * sizeof *places);
    struct iovec *list = malloc(BLOCKS_MAX * sizeof *list);
    struct header header;
    while (places && list && receive(fd, &header, sizeof header) == 0) {
        if (header.count < 1 || header.count > BLOCKS_MAX || header.block > sink.bytes) break;
        places[0] = header.first;
        if (header.count > 1 && receive(fd, places + 1, (header.count - 1) * sizeof *places)) break;
        uint64_t i = 0;
        for (; i < header.count && places[i] <= sink.bytes - header.block; i++)
            list[i] = (struct iovec){sink.pool + places[i], header.block};
        if (i < header.count || receive_all(fd, list, (int)header.count)) break;
        if (send(fd, &header.count, sizeof header.count, MSG_NOSIGNAL) != sizeof header.count) break;
    }
    close(fd);
    free(places);
    free(list);
    return NULL;
}

static void *take(void *unused) {
    (void)unused;
    for (;;) {
        int fd = accept(sink.listener, NULL, NULL);
        pthread_t thread;
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            return NULL;
        }
        if (tune(fd) || pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd)) close(fd);
        else pthread_detach(thread);
    }
}

/// Receives into `pool` from now on; the port, or a negative errno.
int raw_listen(char *pool, uint64_t bytes) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&address, length) || listen(fd, THREADS_MAX) ||
        getsockname(fd, (void *)&address, &length))
        return -errno;
    sink.pool = pool;
    sink.bytes = bytes;
    sink.listener = fd;
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, take, NULL);
    return failed ? -failed : ntohs(address.sin_port);
}

static struct sender {
    int fd;
    struct iovec *list;
} senders[THREADS_MAX];

int raw_connect(int port, int connections) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connections < 1 || connections > THREADS_MAX) return EINVAL;
    for (int number = 0; number < connections; number++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || tune(fd) || connect(fd, (void *)&address, sizeof address)) return errno ? errno : EIO;
        senders[number].fd = fd;
        senders[number].list = malloc((BLOCKS_MAX + 2) * sizeof(struct iovec));
        if (!senders[number].list) return ENOMEM;
    }
    return raw_threads(connections);
}

static int send_share(int number, struct batch *share) {
    struct sender *sender = &senders[number];
    struct header header = {share->count, share->block, share->remote[0]};
    int length = 0;
    sender->list[length++] = (struct iovec){&header, sizeof header};
    if (share->count > 1)
        sender->list[length++] = (struct iovec){(void *)(share->remote + 1), (share->count - 1) * sizeof *share->remote};
    for (uint64_t i = 0; i < share->count; i++)
        sender->list[length++] = (struct iovec){share->source + share->local[i], share->block};
    int failed = send_all(sender->fd, sender->list, length);
    uint64_t acknowledged = 0;
    if (!failed) failed = receive(sender->fd, &acknowledged, sizeof acknowledged);
    return failed ? failed : acknowledged == share->count ? 0 : EPROTO;
}

int raw_send(char *source, const uint64_t *local, const uint64_t *remote, uint64_t count, uint64_t block, int connections) {
    struct batch batch = {source, NULL, local, remote, count, block};
    if (count < 1 || count > BLOCKS_MAX) return EINVAL;
    return shared(send_share, &batch, connections);
}
