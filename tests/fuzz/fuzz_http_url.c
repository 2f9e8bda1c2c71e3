/* Any text as a server's address. Checked: no crash, and what is accepted holds nothing that could end a header line or leave
 * its field, and means the same when it is put together and read again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "eval/http_url.h"

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void require_clean(const char *s)
{
    for (; *s; s++)
        require(*s > ' ' && *s < 127 && *s != '?' && *s != '#');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    http_url a, b;
    error err = {0};
    char *input = mem_copy(data, size);
    if (http_url_parse(input, &a, &err)) {
        char again[1024];
        require_clean(a.origin);
        require_clean(a.prefix);
        require(!strpbrk(a.origin, "@/"));
        require(a.host[0] && atoi(a.port) >= 1 && atoi(a.port) <= 65535);
        if (strlen(a.prefix) + strlen("/v1") < sizeof a.prefix) {
            snprintf(again, sizeof again, "http://%s%s/v1", a.origin, a.prefix);
            require(http_url_parse(again, &b, &err));
            require(!strcmp(a.host, b.host) && !strcmp(a.port, b.port) && !strcmp(a.origin, b.origin));
            require(!strcmp(a.prefix, b.prefix));
        }
    } else {
        require(err.code == ERROR_USAGE && err.text[0]);
    }
    free(input);
    return 0;
}
