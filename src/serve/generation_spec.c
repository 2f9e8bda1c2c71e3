/* What a generation_spec owns. Apart from generation.c, so that reading requests needs no engine. */
#include <stdlib.h>

#include "serve/generation.h"

void generation_spec_free(generation_spec *s)
{
    token_list_free(&s->prompt);
    token_list_free(&s->forced);
    token_list_free(&s->stop_ids);
    json_decref(s->tools);
    free(s->bias);
    for (int i = 0; i < s->stop_count; i++)
        free(s->stops[i]);
    free(s->cache_salt);
    free(s->rid);
    *s = (generation_spec){0};
}
