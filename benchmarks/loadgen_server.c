// A server whose answers are known: OpenAI chat streams with a first token after TTFT_MS, then one every ITL_MS,
// NUM_TOKENS in all. One thread, epoll and a heap of deadlines, no logging: it is on time or says that it was not.
//
//   loadgen_server PORT TTFT_MS ITL_MS NUM_TOKENS
//
// GET /seen answers what it saw since it was last asked: how late its tokens were (P99, milliseconds), how many
// requests came, and how many of them less than half a millisecond after the one before.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 8192, BUFFER = 8192, CELLS = 100000 };

typedef struct {
    char in[BUFFER];
    int used;
    int sent;            // tokens of the answer under way; -1 when there is none
    int64_t next_ns;     // when the next is due
    unsigned generation; // of the descriptor, so that a deadline of a closed one is known
} Peer;

typedef struct {
    int64_t at_ns;
    int fd;
    unsigned generation;
} Deadline;

static Peer peers[MAX_FDS];
static Deadline heap[MAX_FDS * 4];
static int heap_size, epoll, num_tokens;
static int64_t ttft_ns, itl_ns;
static unsigned late_10us[CELLS];
static int64_t last_request_ns;
static int num_requests, num_close;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void push(Deadline d) {
    int i = heap_size++;
    for (; i > 0 && heap[(i - 1) / 2].at_ns > d.at_ns; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = d;
}

static Deadline pop(void) {
    Deadline top = heap[0], last = heap[--heap_size];
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && heap[child + 1].at_ns < heap[child].at_ns) child++;
        if (heap[child].at_ns >= last.at_ns) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void hang_up(int fd) {
    peers[fd].generation++;
    peers[fd].sent = -1;
    peers[fd].used = 0;
    close(fd);
}

static void put(int fd, const char *data, int size) {
    if (send(fd, data, size, MSG_NOSIGNAL) != size) hang_up(fd); // a peer that does not read is not waited for
}

static int chunk(char *out, const char *body) { return sprintf(out, "%zx\r\n%s\r\n", strlen(body), body); }

static void token(int fd) {
    static const char *form =
        "data: {\"id\":\"chatcmpl-%d\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"known\","
        "\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\" tok%d\"},\"logprobs\":null,\"finish_reason\":%s}]}\n\n";
    char out[2048], body[1024];
    Peer *p = &peers[fd];
    int is_last = p->sent + 1 == num_tokens;
    sprintf(body, form, fd, p->sent ? "" : "\"role\":\"assistant\",", p->sent, is_last ? "\"length\"" : "null");
    int size = chunk(out, body);
    p->sent++;
    if (is_last) {
        sprintf(body,
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
                num_tokens, num_tokens + 8);
        size += chunk(out + size, body);
        size += chunk(out + size, "data: [DONE]\n\n");
        size += sprintf(out + size, "0\r\n\r\n");
        p->sent = -1;
    } else {
        p->next_ns += itl_ns;
        push((Deadline){p->next_ns, fd, p->generation});
    }
    put(fd, out, size);
}

static void say_what_was_seen(int fd) {
    unsigned long total = 0, seen = 0;
    int cell = 0;
    for (int i = 0; i < CELLS; i++) total += late_10us[i];
    while (cell < CELLS - 1 && (seen += late_10us[cell]) < total * 99 / 100) cell++;
    memset(late_10us, 0, sizeof late_10us);
    char out[256], body[64];
    sprintf(body, "%.2f %d %d", cell / 100.0, num_requests, num_close);
    num_requests = num_close = 0;
    put(fd, out, sprintf(out, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body));
}

static void request(int fd) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    Peer *p = &peers[fd];
    p->in[p->used] = 0;
    char *end = strstr(p->in, "\r\n\r\n");
    if (!end) return;
    char *length = strcasestr(p->in, "content-length:");
    if (p->used < end + 4 - p->in + (length && length < end ? atoi(length + 15) : 0)) return;
    p->used = 0; // a client sends its next request after the answer
    if (!strncmp(p->in, "GET /seen", 9)) {
        say_what_was_seen(fd);
        return;
    }
    p->sent = 0;
    int64_t now = now_ns();
    num_close += num_requests > 0 && now - last_request_ns < 500000;
    num_requests++;
    last_request_ns = now;
    p->next_ns = now + ttft_ns;
    push((Deadline){p->next_ns, fd, p->generation});
    put(fd, head, sizeof head - 1);
}

static void receive(int fd) {
    Peer *p = &peers[fd];
    ssize_t got = recv(fd, p->in + p->used, BUFFER - 1 - p->used, 0);
    if (got > 0) {
        p->used += got;
        request(fd);
    } else if (got == 0 || errno != EAGAIN) {
        hang_up(fd);
    }
}

static void welcome(int listener) {
    int one = 1;
    for (int fd; (fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0;) {
        if (fd >= MAX_FDS) {
            close(fd);
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        peers[fd].used = 0;
        peers[fd].sent = -1;
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
    }
}

int main(int count, char **words) {
    if (count != 5) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ttft_ns = atof(words[2]) * 1e6;
    itl_ns = atof(words[3]) * 1e6;
    num_tokens = atoi(words[4]);
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) return 1;
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener});
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &(struct epoll_event){.events = EPOLLIN, .data.fd = timer});
    for (;;) {
        if (heap_size) {
            int64_t at = heap[0].at_ns;
            struct itimerspec when = {.it_value = {at / 1000000000, at % 1000000000}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, 0);
        }
        struct epoll_event events[256];
        int num = epoll_wait(epoll, events, 256, -1);
        for (int64_t now = now_ns(); heap_size && heap[0].at_ns <= now; now = now_ns()) {
            Deadline due = pop();
            if (peers[due.fd].generation != due.generation) continue;
            int64_t late = (now - due.at_ns) / 10000;
            late_10us[late < CELLS ? late : CELLS - 1]++;
            token(due.fd);
        }
        for (int i = 0; i < num; i++) {
            uint64_t ticks;
            int fd = events[i].data.fd;
            if (fd == listener) welcome(listener);
            else if (fd == timer) (void)!read(timer, &ticks, sizeof ticks);
            else receive(fd);
        }
    }
}
