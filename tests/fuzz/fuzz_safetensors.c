/* Any bytes as a safetensors file: either an error with a text, or tensors that lie inside the bytes, tile them and can
 * be found by name. Every accepted byte is read once, so that the address sanitizer sees a wrong range. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool fact)
{
    if (!fact)
        abort();
}

static uint64_t check_tensor(const checkpoint *c, size_t index, const uint8_t *bytes, size_t count)
{
    const tensor *t = checkpoint_tensor(c, index);
    char shape[256];
    volatile uint8_t sum = 0;
    require(t->name[0] != '\0' && utf8_valid(t->name, strlen(t->name)));
    require(checkpoint_find(c, t->name) == t);
    require(t->data >= bytes + 8 && t->bytes <= count - (size_t)(t->data - bytes));
    require(t->rank >= 0 && t->rank <= SAFETENSORS_MAX_RANK);
    uint64_t values = 1;
    for (int i = 0; i < t->rank; i++)
        values *= (uint64_t)t->shape[i];
    require(values * dtype_bytes(t->type) == t->bytes);
    require(index == 0 || checkpoint_tensor(c, index - 1)->data + checkpoint_tensor(c, index - 1)->bytes == t->data);
    require(strlen(tensor_shape_text(t, shape, sizeof shape)) >= 2);
    for (uint64_t i = 0; i < t->bytes; i++)
        sum = (uint8_t)(sum + t->data[i]);
    return t->bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    error err = {0};
    checkpoint *c = checkpoint_from_memory(data, size, "fuzz", &err);
    if (!c) {
        require(err.code != ERROR_NONE && err.text[0] != '\0');
        return 0;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < checkpoint_count(c); i++)
        total += check_tensor(c, i, data, size);
    require(total == checkpoint_bytes(c));
    const char *metadata = checkpoint_metadata(c, 0, "format");
    require(!metadata || utf8_valid(metadata, strlen(metadata)));
    checkpoint_close(c);
    return 0;
}
