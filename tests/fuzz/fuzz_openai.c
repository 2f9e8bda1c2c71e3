/* Any bytes as a server's answer. Checked: no crash, no leak, and an accepted answer has all its parts. */
#include <stdint.h>
#include <stdlib.h>

#include "eval/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    openai_answer a = {0};
    error err = {0};
    text name = {0};
    if (openai_answer_parse((const char *)data, size, &a, &err)) {
        json_t *call;
        size_t i;
        if (!a.content.data || !a.reasoning.data || !json_is_array(a.calls))
            abort();
        json_array_foreach (a.calls, i, call)
            if (!json_is_string(json_object_get(call, "name")) || !json_object_get(call, "arguments"))
                abort();
    }
    openai_answer_free(&a);
    openai_models_parse((const char *)data, size, &name, &err);
    text_free(&name);
    return 0;
}
