/* Two questions to a model, answered together by libdrawbridge:
 *
 *     cc embedding.c $(pkg-config --cflags --libs drawbridge) -o embedding && ./embedding models/nano */
#include <drawbridge.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const questions[] = {
    "[{\"role\": \"user\", \"content\": \"What is 2 + 3?\"}]",
    "[{\"role\": \"user\", \"content\": \"What is 40 + 2?\"}]",
};

enum { QUESTIONS = sizeof questions / sizeof questions[0] };

typedef struct answer {
    char text[4096];
    size_t bytes;
} answer;

static void add_text(answer *a, const drawbridge_event *ev)
{
    for (size_t i = 0; i < ev->text_bytes && a->bytes + 1 < sizeof a->text; i++)
        a->text[a->bytes++] = ev->text[i];
}

int main(int argc, char **argv)
{
    drawbridge_error err;
    drawbridge *d = drawbridge_open(argc > 1 ? argv[1] : "models/nano", NULL, &err);
    if (!d) {
        fprintf(stderr, "%s\n", err.text);
        return err.code;
    }
    static answer answers[QUESTIONS];
    for (int i = 0; i < QUESTIONS; i++) {
        drawbridge_request r = drawbridge_request_defaults(d);
        r.messages = questions[i];
        r.thinking = false;
        r.temperature = 0;
        r.max_tokens = 100;
        r.user = &answers[i];
        uint64_t id;
        if (!drawbridge_submit(d, &r, &id, &err)) {
            fprintf(stderr, "%s\n", err.text);
            drawbridge_close(d);
            return err.code;
        }
    }
    /* A negative time-out waits as long as a request is running, so the loop ends after the last event of the last one. */
    for (drawbridge_event ev; drawbridge_poll(d, &ev, 1, -1) == 1; drawbridge_event_free(&ev)) {
        answer *a = ev.user;
        add_text(a, &ev);
        if (ev.finish)
            printf("%s\n  %.*s\n  (%d prompt tokens, %d from the cache, %d of the answer)\n", questions[a - answers], (int)a->bytes, a->text,
                   ev.prompt_tokens, ev.cached_tokens, ev.output_tokens);
    }
    drawbridge_close(d);
    return 0;
}
