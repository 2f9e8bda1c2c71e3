/* The split rule of GLM's tokenizer, as a scanner. */
#ifndef MODEL_TOKENIZER_SPLIT_H
#define MODEL_TOKENIZER_SPLIT_H

#include <stddef.h>

/* The regular expression tokenizer.json must carry, byte for byte: the only one the scanner stands for. */
extern const char tokenizer_split_regex[];

/* Length in bytes of the piece that begins at text; 1..count, count > 0. The text must reach to the end of what is being
 * split, because the rule for spaces looks ahead. A byte that is not part of valid UTF-8 counts as a symbol. */
size_t tokenizer_split_next(const char *text, size_t count);

#endif
