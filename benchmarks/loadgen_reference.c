// The least that a client can be: a closed loop of chat streams, each token timed when it is read. What it sees beside
// servewise is what the machine does to any client.
//
//   loadgen_reference PORT CONCURRENCY NUM_REQUESTS     ->  TTFT P50 and P99 [ms]
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 65536 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int concurrency = atoi(words[2]), num_requests = atoi(words[3]);
    const char *body = "{\"model\":\"known\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"stream\":true}";
    char request[1024], in[BUFFER + 1];
    int size = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                       strlen(body), body);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int *fds = malloc(concurrency * sizeof *fds), one = 1, sent = 0, done = 0, num_ttft = 0;
    double *sent_ms = malloc(concurrency * sizeof *sent_ms), *ttft_ms = malloc(num_requests * sizeof *ttft_ms);
    int *has_token = calloc(concurrency, sizeof *has_token), epoll = epoll_create1(0);
    struct rlimit files = {8192, 8192};
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < concurrency; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (void *)&address, sizeof address)) return 1;
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
        epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &(struct epoll_event){.events = EPOLLIN, .data.u32 = i});
    }
    for (int i = 0; i < concurrency && sent < num_requests; i++, sent++) {
        sent_ms[i] = now_ms();
        if (write(fds[i], request, size) != size) return 1;
    }
    while (done < num_requests) {
        struct epoll_event events[512];
        int num = epoll_wait(epoll, events, 512, 5000);
        if (num <= 0) return 1;
        for (int k = 0; k < num; k++) {
            int i = events[k].data.u32;
            ssize_t got = read(fds[i], in, BUFFER);
            if (got <= 0) return 1;
            double at_ms = now_ms();
            in[got] = 0;
            if (!has_token[i] && strstr(in, "\"content\":")) {
                has_token[i] = 1;
                ttft_ms[num_ttft++] = at_ms - sent_ms[i];
            }
            if (strstr(in, "[DONE]")) {
                done++;
                has_token[i] = 0;
                if (sent < num_requests) {
                    sent++;
                    sent_ms[i] = now_ms();
                    if (write(fds[i], request, size) != size) return 1;
                }
            }
        }
    }
    qsort(ttft_ms, num_ttft, sizeof *ttft_ms, ascending);
    printf("%.3f %.3f\n", ttft_ms[num_ttft / 2], ttft_ms[(int)(num_ttft * 0.99)]);
}
