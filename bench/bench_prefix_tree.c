/* What the prefix tree costs: nanoseconds of processor time per page for insert, find, take (with the drop after it) and evict,
 * with PAGES pages in the tree (default 1,000,000; a node takes about 300 bytes).
 *
 *   bench_prefix_tree [PAGES]
 *
 * Two shapes: "deep", prompts of 20,000 tokens of which groups share the first 2,048, and "wide", one page each below one root,
 * which agree in their first 32 tokens. Prompts come in random order, so nearly every page read is out of the processor's cache.
 * Evictions are done one page at a time while 1,000 prompts (at most half of them) that were used least recently are still in use. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/prefix_tree.h"

enum { LONGEST = 313, MOST_BUSY = 1000, GROUPS = 100, VOCAB = 150000 };

typedef struct shape {
    const char *name;
    int tokens; /* of a prompt */
    int shared; /* of them, by the prompts of a group */
    int groups;
} shape;

static const shape DEEP = {"deep", 20000, 2048, GROUPS}, WIDE = {"wide", KV_PAGE_TOKENS, 32, 1};

typedef struct bench {
    const shape *shape;
    kv_pages *pages;
    prefix_tree *tree;
    int prompts, prompt_pages, busy_prompts;
    int32_t tokens[LONGEST * KV_PAGE_TOKENS], table[LONGEST];
    int32_t (*busy)[LONGEST]; /* [busy_prompts] tables */
    double ns;                /* spent in the tree since the last report */
    int64_t done;             /* pages */
} bench;

static void make_prompt(bench *b, int prompt)
{
    uint64_t group = random_key(1, (uint64_t)(prompt % b->shape->groups)), own = random_key(2, (uint64_t)prompt);
    for (int i = 0; i < b->shape->tokens; i++)
        b->tokens[i] = (int32_t)(random_word_at(i < b->shape->shared ? group : own, (uint64_t)i) % VOCAB);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void report(bench *b, const char *what)
{
    double page = b->ns / (double)b->done;
    printf("%s  %-6s %8.0f ns per page  %8.1f us per prompt of %d tokens\n", b->shape->name, what, page, page * b->prompt_pages / 1000,
           b->shape->tokens);
    b->ns = 0;
    b->done = 0;
}

static void insert_all(bench *b)
{
    for (int p = 0; p < b->prompts; p++) {
        make_prompt(b, p);
        for (int i = 0; i < b->prompt_pages; i++)
            if (!kv_pages_take(b->pages, &b->table[i]))
                exit(1);
        double start = now_ns();
        prefix_tree_insert(b->tree, view_of(""), b->tokens, b->shape->tokens, b->shape->tokens, b->table);
        b->ns += now_ns() - start;
        b->done += b->prompt_pages;
        for (int i = 0; i < b->prompt_pages; i++)
            if (p < b->busy_prompts)
                b->busy[p][i] = b->table[i];
            else
                kv_pages_drop(b->pages, b->table[i]);
    }
    report(b, "insert");
}

static void look_up(bench *b, bool take)
{
    for (uint64_t round = 0; b->done < 1000000 && b->ns < 3e9; round++) {
        make_prompt(b, (int)(random_word(3, round, take) % (uint64_t)b->prompts));
        double start = now_ns();
        prefix_match m = take ? prefix_tree_take(b->tree, view_of(""), b->tokens, b->shape->tokens, b->table)
                              : prefix_tree_find(b->tree, view_of(""), b->tokens, b->shape->tokens);
        for (int i = 0; take && i < m.full_pages; i++)
            kv_pages_drop(b->pages, b->table[i]);
        if (take && m.copy_page >= 0)
            kv_pages_drop(b->pages, m.copy_page);
        b->ns += now_ns() - start;
        b->done += b->prompt_pages;
        if (m.tokens != b->shape->tokens)
            exit(1);
    }
    report(b, take ? "take" : "find");
}

static void evict_all(bench *b)
{
    double start = now_ns();
    while (prefix_tree_evict(b->tree, 1))
        b->done++;
    b->ns = now_ns() - start;
    report(b, "evict");
}

static void measure(const shape *s, int pages)
{
    bench *b = mem_alloc(1, sizeof *b);
    b->shape = s;
    b->prompt_pages = (s->tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    b->prompts = pages / b->prompt_pages;
    b->pages = kv_pages_create_ids(pages);
    b->tree = prefix_tree_create(b->pages);
    b->busy_prompts = b->prompts / 2 < MOST_BUSY ? b->prompts / 2 : MOST_BUSY;
    b->busy = mem_alloc((size_t)b->busy_prompts, sizeof *b->busy);
    insert_all(b);
    printf("%s  %lld pages in the tree, %d idle\n", s->name, (long long)prefix_tree_count(b->tree).pages, b->pages->idle_count);
    look_up(b, false);
    look_up(b, true);
    evict_all(b);
    for (int p = 0; p < b->busy_prompts; p++)
        for (int i = 0; i < b->prompt_pages; i++)
            kv_pages_drop(b->pages, b->busy[p][i]);
    prefix_tree_destroy(b->tree);
    if (b->pages->free_count != pages)
        exit(1);
    kv_pages_destroy(b->pages);
    free(b->busy);
    free(b);
}

int main(int argc, char **argv)
{
    int pages = argc > 1 ? atoi(argv[1]) : 1000000;
    if (pages < LONGEST) {
        fprintf(stderr, "bench_prefix_tree: expected a number of pages from %d on, found \"%s\"\n", LONGEST, argv[1]);
        return 2;
    }
    measure(&DEEP, pages);
    measure(&WIDE, pages);
    return 0;
}
