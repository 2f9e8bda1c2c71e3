/* For tests of servers: a loop that is pumped by hand and clients that are plain sockets in the same thread, so that every step happens
 * when the test says so. Nothing here measures time; the deadline only turns a hang into a failure. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

enum { PUMP_DEADLINE_US = 60000000 };

static struct event_base *pump_base;

static void pump(void)
{
    event_base_loop(pump_base, EVLOOP_NONBLOCK);
}

static void pump_some(void)
{
    for (int i = 0; i < 5; i++)
        pump();
}

/* One turn of the loop and a moment of rest; fails when the test has waited too long since *since (0: it begins now). */
static void pump_wait(uint64_t *since)
{
    uint64_t now = clock_now_us();
    if (*since == 0)
        *since = now;
    assert_true(now - *since < PUMP_DEADLINE_US);
    pump();
    nanosleep(&(struct timespec){0, 200000}, NULL);
}

#define PUMP_UNTIL(condition)      \
    do {                           \
        uint64_t since_ = 0;       \
        while (!(condition))       \
            pump_wait(&since_);    \
    } while (0)

typedef struct client {
    int fd;
    text in;    /* everything received */
    size_t seen; /* of it, looked at */
    bool ended; /* by the server */
    bool reset; /* and not in order */
} client;

/* receive_bytes: size of the receive buffer, 0: the system's. */
static client client_open_sized(int port, int receive_bytes)
{
    client c = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(c.fd >= 0);
    if (receive_bytes)
        setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    assert_int_equal(connect(c.fd, (struct sockaddr *)&address, sizeof address), 0);
    int on = 1;
    setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    assert_int_equal(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
    return c;
}

static client client_open(int port)
{
    return client_open_sized(port, 0);
}

static void client_read(client *c)
{
    char bytes[65536];
    while (!c->ended) {
        ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
        if (n > 0)
            text_add(&c->in, bytes, (size_t)n);
        else if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        else
            c->ended = true;
        c->reset = n < 0;
    }
}

static void client_send_bytes(client *c, const char *bytes, size_t count)
{
    uint64_t since = 0;
    for (size_t at = 0; at < count;) {
        ssize_t n = send(c->fd, bytes + at, count - at, MSG_NOSIGNAL);
        if (n > 0) {
            at += (size_t)n;
        } else if (errno != EAGAIN) {
            return; /* the server closed; what it said is read later */
        } else {
            pump_wait(&since);
            client_read(c); /* a server that cannot send may stop reading */
        }
    }
}

static void client_send(client *c, const char *words)
{
    client_send_bytes(c, words, strlen(words));
}

/* Waits until `words` come after what has been seen; everything up to them counts as seen. */
static void client_expect(client *c, const char *words)
{
    uint64_t since = 0;
    const char *found = NULL;
    while (!found) {
        client_read(c);
        found = c->in.data ? strstr(c->in.data + c->seen, words) : NULL;
        if (!found && (c->ended || (since && clock_now_us() - since > PUMP_DEADLINE_US - 1000000))) {
            print_error("expected: %s\nfound: %s\n", words, c->in.data ? c->in.data + c->seen : "");
            fail();
        }
        if (!found)
            pump_wait(&since);
    }
    c->seen = (size_t)(found - c->in.data) + strlen(words);
}

static void client_expect_end(client *c)
{
    uint64_t since = 0;
    while (!c->ended) {
        pump_wait(&since);
        client_read(c);
    }
}

static void client_close(client *c)
{
    close(c->fd);
    text_free(&c->in);
}

/* Closes so that the other side sees a reset, not an end. */
static void client_reset(client *c)
{
    struct linger now = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    client_close(c);
}
