#include "serve/page.h"

#include <string.h>

#include "base/text.h"
#include "serve/handlers.h"

const page_file *page_find(const char *name)
{
    for (const page_file *f = page_files; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

const char *page_type(const char *name)
{
    static const struct {
        const char *ending, *type;
    } types[] = {
        {".html", "text/html; charset=utf-8"}, {".js", "text/javascript; charset=utf-8"}, {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},             {".txt", "text/plain; charset=utf-8"},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (text_ends_with(name, types[i].ending))
            return types[i].type;
    return "application/octet-stream";
}

bool page_has_charts(void)
{
    return page_find("uplot.js") != NULL;
}

const char *page_warning(void)
{
    if (page_has_charts())
        return NULL;
    return "this build has no charts on its page: uPlot was not in web/node_modules when it was built. Everything else works; "
           "to add them run \"npm ci\" in web/ and build again";
}

/* Everything the page needs comes from this server; nothing inline, no frames around it. dispatch.c adds nosniff to every reply. */
static void add_security_headers(http_exchange *x)
{
    http_add_header(x, "Content-Security-Policy",
                    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    http_add_header(x, "Referrer-Policy", "no-referrer");
    http_add_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    http_add_header(x, "Cross-Origin-Resource-Policy", "same-origin");
}

/* If-None-Match is "*" or a list of tags, each perhaps with W/ before it. */
static bool client_has(const http_exchange *x, const char *etag)
{
    const char *tags = http_header(x, "If-None-Match");
    return tags && (strcmp(tags, "*") == 0 || strstr(tags, etag));
}

void handle_page(server *s, http_exchange *x, const tenant *who)
{
    (void)s, (void)who;
    const char *path = http_path(x);
    bool asset = text_starts_with(path, "/assets/");
    const page_file *f = page_find(asset ? path + strlen("/assets/") : "index.html");
    if (!f) {
        server_reply_error(x, 404, NULL, "the page has no file %.100s", path);
        return;
    }
    add_security_headers(x);
    http_add_header(x, "ETag", f->etag);
    http_add_header(x, "Cache-Control", "no-cache"); /* keep, but ask: a new build changes files without changing names */
    if (client_has(x, f->etag))
        http_reply(x, 304, page_type(f->name), NULL, 0);
    else
        http_reply(x, 200, page_type(f->name), f->bytes, f->count);
}
