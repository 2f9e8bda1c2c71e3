/* The prefix tree and the accounts of the page pool: one test per promise of the headers, and random work against a list that is
 * searched from end to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/prefix_tree.h"

enum { PAGE = KV_PAGE_TOKENS };

static const view NOBODY = {"", 0};

/* ---- the pool ---- */

static void test_pool_counts_idle_pages(void **state)
{
    (void)state;
    kv_pages *p = kv_pages_create_ids(4);
    int32_t a = 0, b = 0, c = 0;
    assert_true(kv_pages_take(p, &a) && kv_pages_take(p, &b) && kv_pages_take(p, &c));
    assert_int_equal(p->free_count, 1);
    kv_pages_tree_share(p, a);
    kv_pages_tree_share(p, b);
    assert_int_equal(p->users[a], 2);
    assert_int_equal(p->idle_count, 0);
    assert_int_equal(kv_pages_longest_idle(p), -1);
    kv_pages_drop(p, b);
    kv_pages_drop(p, a);
    assert_int_equal(p->idle_count, 2);
    assert_int_equal(p->free_count, 1);
    assert_int_equal(kv_pages_longest_idle(p), b);
    kv_pages_share(p, b); /* used again, then idle for a shorter time than a */
    assert_false(kv_pages_is_idle(p, b));
    assert_int_equal(p->idle_count, 1);
    kv_pages_drop(p, b);
    assert_int_equal(kv_pages_longest_idle(p), a);
    kv_pages_idle_last(p, a);
    assert_int_equal(kv_pages_longest_idle(p), b);
    kv_pages_idle_first(p, a);
    assert_int_equal(kv_pages_longest_idle(p), a);
    kv_pages_tree_drop(p, a);
    assert_int_equal(p->free_count, 2);
    assert_int_equal(p->idle_count, 1);
    kv_pages_share(p, b);
    kv_pages_tree_drop(p, b); /* its sequence keeps it */
    assert_int_equal(p->users[b], 1);
    assert_false(p->in_tree[b]);
    kv_pages_drop(p, b);
    kv_pages_drop(p, c);
    assert_int_equal(p->free_count, 4);
    assert_int_equal(p->idle_count, 0);
    kv_pages_destroy(p);
}

/* ---- directed ---- */

/* A prompt of numbered tokens, and the pages of whoever computed it. */
typedef struct prompt {
    int32_t tokens[8 * PAGE];
    int32_t table[8];
    int count, pages;
} prompt;

/* `shared` tokens that all prompts have in common, the rest its own. */
static prompt prompt_of(int count, int shared, int32_t own)
{
    prompt p = {.count = count, .pages = (count + PAGE - 1) / PAGE};
    for (int i = 0; i < count; i++)
        p.tokens[i] = i < shared ? i : 1000 * own + i;
    return p;
}

static void compute(kv_pages *pages, prompt *p)
{
    for (int i = 0; i < p->pages; i++)
        assert_true(kv_pages_take(pages, &p->table[i]));
}

static void drop(kv_pages *pages, const prompt *p)
{
    for (int i = 0; i < p->pages; i++)
        kv_pages_drop(pages, p->table[i]);
}

static void drop_backwards(kv_pages *pages, const prompt *p)
{
    for (int i = p->pages; i-- > 0;)
        kv_pages_drop(pages, p->table[i]);
}

static void insert(prefix_tree *t, view space, prompt *p, int draft_tokens)
{
    prefix_tree_insert(t, space, p->tokens, p->count, draft_tokens, p->table);
}

static prompt add(prefix_tree *t, kv_pages *pages, int count, int shared, int32_t own)
{
    prompt p = prompt_of(count, shared, own);
    compute(pages, &p);
    insert(t, NOBODY, &p, count);
    return p;
}

static void check_match(prefix_match m, int tokens, int full_pages, int idle_pages, int copy_page, int copy_tokens, int draft_tokens)
{
    assert_int_equal(m.tokens, tokens);
    assert_int_equal(m.full_pages, full_pages);
    assert_int_equal(m.idle_pages, idle_pages);
    assert_int_equal(m.copy_page, copy_page);
    assert_int_equal(m.copy_tokens, copy_tokens);
    assert_int_equal(m.draft_tokens, draft_tokens);
}

typedef struct rig {
    kv_pages *pages;
    prefix_tree *tree;
} rig;

static int rig_open(void **state)
{
    rig *r = mem_alloc(1, sizeof *r);
    r->pages = kv_pages_create_ids(32);
    r->tree = prefix_tree_create(r->pages);
    *state = r;
    return 0;
}

/* Whatever a test did: without the tree and without sequences every page is free. */
static int rig_close(void **state)
{
    rig *r = *state;
    prefix_tree_destroy(r->tree);
    int leaked = r->pages->count - r->pages->free_count + r->pages->idle_count;
    kv_pages_destroy(r->pages);
    free(r);
    return leaked;
}

static void test_finds_full_pages_and_a_beginning(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 3 * PAGE, 8 * PAGE, 0), b = prompt_of(3 * PAGE, 2 * PAGE + 5, 1);
    check_match(prefix_tree_find(r->tree, NOBODY, b.tokens, b.count), 2 * PAGE + 5, 2, 0, a.table[2], 5, 2 * PAGE + 5);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, a.count), 3 * PAGE, 3, 0, -1, 0, 3 * PAGE);
    check_match(prefix_tree_find(r->tree, NOBODY, b.tokens, 0), 0, 0, 0, -1, 0, 0);
    b.tokens[0] = -1;
    check_match(prefix_tree_find(r->tree, NOBODY, b.tokens, b.count), 0, 0, 0, -1, 0, 0);
    drop(r->pages, &a);
    b.tokens[0] = a.tokens[0];
    check_match(prefix_tree_find(r->tree, NOBODY, b.tokens, b.count), 2 * PAGE + 5, 2, 2, a.table[2], 5, 2 * PAGE + 5);
}

static void test_count_cuts_a_page(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 2 * PAGE, 8 * PAGE, 0);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, PAGE), PAGE, 1, 0, -1, 0, PAGE);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, PAGE + 1), PAGE + 1, 1, 0, a.table[1], 1, PAGE + 1);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, 2 * PAGE - 1), 2 * PAGE - 1, 1, 0, a.table[1], PAGE - 1, 2 * PAGE - 1);
    drop(r->pages, &a);
}

/* Of many children the neighbour with the longest common beginning is found, on either side. */
static void test_copies_from_the_longest_beginning(void **state)
{
    rig *r = *state;
    int32_t page[20];
    for (int32_t i = 0; i < 20; i++) {
        prompt p = add(r->tree, r->pages, PAGE, 3 * (i + 1), i + 1);
        page[i] = p.table[0];
        drop(r->pages, &p);
    }
    for (int shared = 3; shared <= 60; shared++)
        for (int32_t own = -1; own <= 2000; own += 2001) { /* sorts before and behind all others */
            prompt q = prompt_of(PAGE, shared, own);
            prefix_match m = prefix_tree_find(r->tree, NOBODY, q.tokens, PAGE);
            assert_int_equal(m.copy_tokens, shared);
            assert_true(m.copy_page == page[shared / 3 - 1] || shared % 3 == 0 || m.copy_page > page[shared / 3 - 1]);
        }
}

static void test_a_beginning_with_draft_keys_is_preferred(void **state)
{
    rig *r = *state;
    for (int32_t with = 1; with <= 3; with += 2) { /* the one with draft keys before, then behind */
        prompt a = prompt_of(PAGE, 10, with), b = prompt_of(PAGE, 10, 4 - with), q = prompt_of(PAGE, 10, 2);
        compute(r->pages, &a);
        compute(r->pages, &b);
        insert(r->tree, NOBODY, &a, PAGE);
        insert(r->tree, NOBODY, &b, 3);
        check_match(prefix_tree_find(r->tree, NOBODY, q.tokens, PAGE), 10, 0, 0, a.table[0], 10, 10);
        drop(r->pages, &a);
        drop(r->pages, &b);
        prefix_tree_clear(r->tree);
    }
}

static void test_take_makes_a_user(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 3 * PAGE, 8 * PAGE, 0), b = prompt_of(3 * PAGE, 2 * PAGE + 5, 1);
    drop(r->pages, &a);
    assert_int_equal(r->pages->idle_count, 3);
    check_match(prefix_tree_take(r->tree, NOBODY, b.tokens, b.count, b.table), 2 * PAGE + 5, 2, 2, a.table[2], 5, 2 * PAGE + 5);
    assert_memory_equal(a.table, b.table, 2 * sizeof *a.table);
    for (int i = 0; i < 3; i++)
        assert_int_equal(r->pages->users[a.table[i]], 2);
    assert_int_equal(r->pages->idle_count, 0);
    assert_int_equal(prefix_tree_evict(r->tree, 9), 0);
    kv_pages_drop(r->pages, a.table[2]);
    assert_int_equal(r->pages->idle_count, 1);
    b.pages = 2;
    drop(r->pages, &b);
    assert_int_equal(r->pages->idle_count, 3);
}

static void test_equal_pages_exist_once(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 2 * PAGE, 8 * PAGE, 0), b = prompt_of(3 * PAGE, 2 * PAGE, 1);
    compute(r->pages, &b);
    int32_t own = b.table[2];
    insert(r->tree, NOBODY, &b, 3 * PAGE);
    assert_memory_equal(a.table, b.table, 2 * sizeof *a.table);
    assert_int_equal(b.table[2], own);
    assert_int_equal(r->pages->users[a.table[1]], 3);
    assert_int_equal(r->pages->free_count, r->pages->count - 3);
    insert(r->tree, NOBODY, &b, 3 * PAGE); /* once more changes nothing */
    assert_int_equal(r->pages->users[own], 2);
    assert_int_equal(prefix_tree_count(r->tree).pages, 3);
    drop(r->pages, &a);
    drop(r->pages, &b);
}

static void test_more_draft_keys_take_the_place(void **state)
{
    rig *r = *state;
    prompt a = prompt_of(2 * PAGE, 8 * PAGE, 0), b = a, c = a;
    compute(r->pages, &a);
    compute(r->pages, &b);
    compute(r->pages, &c);
    insert(r->tree, NOBODY, &a, PAGE - 1);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, a.count), 2 * PAGE, 2, 0, -1, 0, PAGE - 1);
    int32_t better[2] = {b.table[0], b.table[1]}, kept[2] = {a.table[0], a.table[1]};
    insert(r->tree, NOBODY, &b, PAGE + 1);
    assert_memory_equal(b.table, better, sizeof better);
    assert_memory_equal(a.table, kept, sizeof kept);
    assert_int_equal(r->pages->users[a.table[0]], 1); /* a sequence goes on with its own */
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, a.count), 2 * PAGE, 2, 0, -1, 0, PAGE + 1);
    insert(r->tree, NOBODY, &c, PAGE + 1); /* as many: the tree keeps its own */
    assert_memory_equal(c.table, better, sizeof better);
    assert_int_equal(prefix_tree_count(r->tree).pages, 2);
    drop(r->pages, &a);
    drop(r->pages, &b);
    drop(r->pages, &c);
    assert_int_equal(r->pages->idle_count, 2);
}

/* Draft keys count from the first token on, of a page to copy up to where it agrees. */
static void test_draft_tokens_are_counted_within_the_match(void **state)
{
    rig *r = *state;
    prompt a = prompt_of(3 * PAGE, 8 * PAGE, 0);
    compute(r->pages, &a);
    insert(r->tree, NOBODY, &a, 0);
    prompt b = a;
    b.count = PAGE;
    b.pages = 1;
    compute(r->pages, &b);
    insert(r->tree, NOBODY, &b, PAGE - 1);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, 3 * PAGE - 1), 3 * PAGE - 1, 2, 0, a.table[2], PAGE - 1, PAGE - 1);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, 9), 9, 0, 0, b.table[0], 9, 9);
    drop(r->pages, &a);
    drop(r->pages, &b);
}

static void test_partial_pages(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, PAGE + 20, 8 * PAGE, 0), b = prompt_of(PAGE + 10, 8 * PAGE, 0);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, a.count), PAGE + 20, 1, 0, a.table[1], 20, PAGE + 20);
    compute(r->pages, &b); /* shorter: there is nothing to do, and its page stays its own */
    int32_t own = b.table[1];
    insert(r->tree, NOBODY, &b, b.count);
    assert_int_equal(b.table[0], a.table[0]);
    assert_int_equal(b.table[1], own);
    assert_false(r->pages->in_tree[own]);
    prompt same = a; /* equal tokens: not exchanged either */
    compute(r->pages, &same);
    own = same.table[1];
    insert(r->tree, NOBODY, &same, same.count);
    assert_int_equal(same.table[1], own);
    assert_false(r->pages->in_tree[own]);
    prompt c = prompt_of(PAGE + 30, PAGE + 25, 1), d = prompt_of(2 * PAGE, PAGE + 30, 1); /* longer ones take the place */
    compute(r->pages, &c);
    insert(r->tree, NOBODY, &c, 0);
    assert_true(r->pages->in_tree[c.table[1]]);
    assert_false(r->pages->in_tree[a.table[1]]);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, a.count), PAGE + 20, 1, 0, c.table[1], 20, PAGE);
    compute(r->pages, &d);
    insert(r->tree, NOBODY, &d, 0);
    assert_int_equal(prefix_tree_count(r->tree).pages, 3); /* page 0, c and d, which part at token 25 */
    prompt e = prompt_of(PAGE + 30, PAGE + 25, 1); /* the tokens of c, with draft keys */
    compute(r->pages, &e);
    insert(r->tree, NOBODY, &e, e.count);
    assert_false(r->pages->in_tree[c.table[1]]);
    assert_true(r->pages->in_tree[e.table[1]]);
    prompt *all[] = {&a, &b, &same, &c, &d, &e};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        drop(r->pages, all[i]);
    assert_int_equal(r->pages->idle_count, 3);
}

/* A sequence inserts what it has, goes on, and inserts again: its page grows in the tree. */
static void test_a_page_grows(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 20, 8 * PAGE, 0);
    for (int i = 20; i < 2 * PAGE; i++)
        a.tokens[i] = i;
    assert_true(kv_pages_take(r->pages, &a.table[1]));
    a.count = 2 * PAGE;
    a.pages = 2;
    insert(r->tree, NOBODY, &a, a.count);
    assert_int_equal(r->pages->users[a.table[0]], 2);
    assert_int_equal(prefix_tree_count(r->tree).pages, 2);
    check_match(prefix_tree_find(r->tree, NOBODY, a.tokens, a.count), 2 * PAGE, 2, 0, -1, 0, 2 * PAGE);
    drop(r->pages, &a);
}

static void test_spaces_share_nothing(void **state)
{
    rig *r = *state;
    char name[] = "tenant a";
    prompt a = prompt_of(PAGE, 8 * PAGE, 0), b = a, c = a;
    compute(r->pages, &a);
    compute(r->pages, &b);
    compute(r->pages, &c);
    insert(r->tree, view_of(name), &a, PAGE);
    assert_int_equal(prefix_tree_find(r->tree, NOBODY, a.tokens, PAGE).tokens, 0);
    assert_int_equal(prefix_tree_find(r->tree, view_of("tenant b"), a.tokens, PAGE).tokens, 0);
    insert(r->tree, view_of("tenant b"), &b, PAGE);
    insert(r->tree, (view){"tenant a\0x", 10}, &c, PAGE); /* any bytes are a name */
    name[0] = 'X';                                         /* names are copied */
    int32_t found;
    assert_int_equal(prefix_tree_take(r->tree, view_of("tenant a"), a.tokens, PAGE, &found).full_pages, 1);
    assert_int_equal(found, a.table[0]);
    kv_pages_drop(r->pages, found);
    assert_int_not_equal(a.table[0], b.table[0]);
    assert_int_equal(prefix_tree_count(r->tree).spaces, 3);
    drop(r->pages, &b);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1); /* the last page of a space takes the space with it */
    assert_int_equal(prefix_tree_count(r->tree).spaces, 2);
    drop(r->pages, &a);
    drop(r->pages, &c);
}

static void test_nothing_makes_no_space(void **state)
{
    rig *r = *state;
    prefix_tree_insert(r->tree, view_of("a"), NULL, 0, 0, NULL);
    assert_int_equal(prefix_tree_count(r->tree).spaces, 0);
}

static void test_many_spaces(void **state)
{
    rig *r = *state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 32; i++) {
            char name[16];
            int length = snprintf(name, sizeof name, "salt %d", i);
            prompt p = prompt_of(PAGE, 0, i);
            compute(r->pages, &p);
            insert(r->tree, (view){name, (size_t)length}, &p, PAGE);
            assert_int_equal(prefix_tree_find(r->tree, (view){name, (size_t)length}, p.tokens, PAGE).full_pages, 1);
            drop(r->pages, &p);
        }
        assert_int_equal(prefix_tree_count(r->tree).spaces, 32);
        assert_int_equal(prefix_tree_evict(r->tree, 99), 32);
        assert_int_equal(prefix_tree_count(r->tree).spaces, 0);
    }
}

static void test_evicts_least_recently_used_leaves(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 2 * PAGE, PAGE, 1), b = add(r->tree, r->pages, 2 * PAGE, PAGE, 2);
    prompt c = add(r->tree, r->pages, 2 * PAGE, PAGE, 3), again = a;
    drop(r->pages, &b);
    drop_backwards(r->pages, &a);
    drop(r->pages, &c);
    assert_int_equal(prefix_tree_take(r->tree, NOBODY, b.tokens, b.count, again.table).full_pages, 2); /* b is used once more */
    drop(r->pages, &again);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1);
    assert_false(r->pages->in_tree[a.table[1]]);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1);
    assert_false(r->pages->in_tree[c.table[1]]);
    assert_true(r->pages->in_tree[b.table[1]]);
    assert_int_equal(prefix_tree_evict(r->tree, 0), 0);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1);
    assert_false(r->pages->in_tree[b.table[1]]);
    assert_true(r->pages->in_tree[b.table[0]]); /* a leaf now */
    assert_int_equal(prefix_tree_evict(r->tree, 5), 1);
    assert_int_equal(prefix_tree_count(r->tree).evicted_pages, 4);
    assert_int_equal(r->pages->free_count, r->pages->count);
}

/* A partial page that finds its tokens in the tree makes the page there recently used. */
static void test_inserting_what_is_there_marks_it_as_used(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, PAGE - 1, 0, 1), b = add(r->tree, r->pages, PAGE - 1, 0, 2), again = a;
    drop(r->pages, &a);
    drop(r->pages, &b);
    compute(r->pages, &again);
    again.count = 9;
    insert(r->tree, NOBODY, &again, 0);
    drop(r->pages, &again);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1);
    assert_true(r->pages->in_tree[a.table[0]]);
    assert_false(r->pages->in_tree[b.table[0]]);
}

static void test_pages_in_use_are_not_evicted(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 3 * PAGE, PAGE, 1), b = add(r->tree, r->pages, 3 * PAGE, PAGE, 2);
    drop(r->pages, &a);
    assert_int_equal(r->pages->idle_count, 2);
    assert_int_equal(prefix_tree_evict(r->tree, 9), 2);
    assert_int_equal(prefix_tree_find(r->tree, NOBODY, b.tokens, b.count).full_pages, 3);
    drop(r->pages, &b);
}

/* A sequence whose first page was replaced keeps the next one in use behind a page that becomes idle: that one can be had. */
static void test_every_idle_page_can_be_had(void **state)
{
    rig *r = *state;
    prompt a = prompt_of(2 * PAGE, 8 * PAGE, 0), b = a;
    b.count = PAGE;
    b.pages = 1;
    compute(r->pages, &a);
    compute(r->pages, &b);
    insert(r->tree, NOBODY, &a, 0);
    insert(r->tree, NOBODY, &b, PAGE);
    drop(r->pages, &b);
    assert_int_equal(r->pages->idle_count, 1);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1);
    assert_int_equal(prefix_tree_count(r->tree).pages, 0);
    assert_int_equal(prefix_tree_count(r->tree).evicted_pages, 1);
    assert_int_equal(r->pages->users[a.table[1]], 1); /* forgotten by the tree, kept by its sequence */
    drop(r->pages, &a);
}

/* The same after a clear: b uses a page of a, but not the page that is now before it. */
static void test_idle_pages_can_be_had_after_a_clear(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 2 * PAGE, 8 * PAGE, 0), b = a, c = a;
    prefix_tree_take(r->tree, NOBODY, b.tokens, b.count, b.table);
    prefix_tree_clear(r->tree);
    c.count = PAGE;
    c.pages = 1;
    compute(r->pages, &c);
    insert(r->tree, NOBODY, &c, PAGE);
    insert(r->tree, NOBODY, &a, 2 * PAGE);
    assert_int_equal(a.table[0], c.table[0]);
    drop(r->pages, &a);
    drop(r->pages, &c);
    assert_int_equal(r->pages->idle_count, 1);
    assert_int_equal(prefix_tree_evict(r->tree, 1), 1);
    assert_int_equal(prefix_tree_count(r->tree).pages, 0);
    drop(r->pages, &b);
}

static void test_clear_leaves_pages_to_their_users(void **state)
{
    rig *r = *state;
    prompt a = add(r->tree, r->pages, 3 * PAGE, PAGE, 1), b = add(r->tree, r->pages, 3 * PAGE, PAGE, 2);
    drop(r->pages, &a);
    prefix_tree_clear(r->tree);
    assert_int_equal(r->pages->free_count, r->pages->count - 3);
    assert_int_equal(r->pages->idle_count, 0);
    assert_int_equal(prefix_tree_count(r->tree).pages, 0);
    assert_int_equal(prefix_tree_count(r->tree).spaces, 0);
    assert_int_equal(prefix_tree_count(r->tree).evicted_pages, 0);
    assert_int_equal(prefix_tree_find(r->tree, NOBODY, b.tokens, b.count).tokens, 0);
    insert(r->tree, NOBODY, &b, b.count);
    assert_int_equal(prefix_tree_find(r->tree, NOBODY, b.tokens, b.count).full_pages, 3);
    drop(r->pages, &b);
}

/* Thousands of siblings in random order: all are found, and evicted in the order in which they were last used. */
static void test_many_siblings(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    kv_pages *pages = kv_pages_create_ids(MANY);
    prefix_tree *t = prefix_tree_create(pages);
    int32_t *page = mem_alloc(MANY, sizeof *page);
    for (int i = 0; i < MANY; i++) {
        prompt p = add(t, pages, PAGE, i % PAGE, (int32_t)(random_word(1, (uint64_t)i, 0) % 2000000));
        page[i] = p.table[0];
        drop(pages, &p);
    }
    for (int i = 0; i < MANY; i++) {
        prompt p = prompt_of(PAGE, i % PAGE, (int32_t)(random_word(1, (uint64_t)i, 0) % 2000000));
        prefix_tree_take(t, NOBODY, p.tokens, PAGE, p.table);
        assert_int_equal(p.table[0], page[i]);
        drop(pages, &p);
    }
    for (int i = 0; i < MANY; i++) {
        assert_true(pages->in_tree[page[i]]);
        assert_int_equal(prefix_tree_evict(t, 1), 1);
        assert_false(pages->in_tree[page[i]]);
    }
    assert_int_equal(pages->free_count, MANY);
    free(page);
    prefix_tree_destroy(t);
    kv_pages_destroy(pages);
}

/* ---- random work against a list ---- */

enum { POOL = 40, SEQUENCES = 6, LONGEST = 5 * PAGE, SPACES = 3 };

/* A page of the tree, with all tokens up to its end. */
typedef struct entry {
    int space, count, draft_tokens; /* draft_tokens: of this page alone */
    int32_t page;
    int32_t tokens[LONGEST];
} entry;

typedef struct sequence {
    bool running;
    int space, count, pages;
    int32_t tokens[LONGEST];
    int32_t table[LONGEST / PAGE];
} sequence;

typedef struct world {
    kv_pages *pages;
    prefix_tree *tree;
    entry entries[POOL];
    int entry_count;
    sequence sequences[SEQUENCES];
    entry written[POOL];        /* what was last computed into a page; page and draft_tokens unused */
    uint64_t idle_since[POOL];  /* order of the latest drops */
    uint64_t drops, seed, draws;
    bool orderly;               /* all draft keys are there and nothing is cleared: pages in use have parents in use */
} world;

static const char *const SPACE_NAMES[SPACES] = {"", "a", "tenant with a longer name"};

static int draw(world *w, int below)
{
    return (int)(random_word(w->seed, w->draws++, 0) % (uint64_t)below);
}

static int common(const int32_t *a, const int32_t *b, int count)
{
    int i = 0;
    while (i < count && a[i] == b[i])
        i++;
    return i;
}

static int page_of(const entry *e)
{
    return (e->count - 1) / PAGE;
}

static bool begins_with(const entry *e, const int32_t *tokens, int count)
{
    return e->count >= count && common(e->tokens, tokens, count) == count;
}

static entry *entry_of(world *w, int32_t page)
{
    for (int i = 0; i < w->entry_count; i++)
        if (w->entries[i].page == page)
            return &w->entries[i];
    return NULL;
}

static void check_accounts(world *w)
{
    int users[POOL] = {0}, free_pages = 0, idle = 0;
    bool in_tree[POOL] = {false};
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; w->sequences[s].running && i < w->sequences[s].pages; i++)
            users[w->sequences[s].table[i]]++;
    for (int i = 0; i < w->entry_count; i++) {
        assert_false(in_tree[w->entries[i].page]);
        in_tree[w->entries[i].page] = true;
    }
    for (int i = 0; i < POOL; i++) {
        assert_int_equal(w->pages->users[i], users[i] + in_tree[i]);
        assert_int_equal(w->pages->in_tree[i], in_tree[i]);
        free_pages += users[i] + in_tree[i] == 0;
        idle += in_tree[i] && users[i] == 0;
    }
    assert_int_equal(w->pages->free_count, free_pages);
    assert_int_equal(w->pages->idle_count, idle);
    int ring = 0;
    for (int32_t i = w->pages->idle_next[POOL]; i != POOL; i = w->pages->idle_next[i]) {
        assert_true(kv_pages_is_idle(w->pages, i) && w->pages->idle_previous[w->pages->idle_next[i]] == i);
        ring++;
    }
    assert_int_equal(ring, idle);
    assert_int_equal(prefix_tree_count(w->tree).pages, w->entry_count);
    bool spaces[SPACES] = {false};
    for (int i = 0; i < w->entry_count; i++)
        spaces[w->entries[i].space] = true;
    assert_int_equal(prefix_tree_count(w->tree).spaces, spaces[0] + spaces[1] + spaces[2]);
}

/* The match is the longest there is, its pages hold these tokens, and its counts are those of the entries. */
static void check_found(world *w, int space, const int32_t *tokens, int count, prefix_match m, const int32_t *table)
{
    int longest = 0, idle = 0, drafts = 0;
    for (int i = 0; i < w->entry_count; i++)
        if (w->entries[i].space == space) {
            int least = w->entries[i].count < count ? w->entries[i].count : count;
            int c = common(w->entries[i].tokens, tokens, least);
            longest = c > longest ? c : longest;
        }
    assert_int_equal(m.tokens, longest);
    assert_int_equal(m.full_pages, longest / PAGE);
    assert_int_equal(m.copy_tokens, longest % PAGE);
    assert_int_equal(m.copy_page >= 0, m.copy_tokens > 0);
    for (int i = 0; i < m.full_pages + (m.copy_page >= 0); i++) {
        bool full = i < m.full_pages;
        int32_t page = full ? table[i] : m.copy_page;
        int end = full ? (i + 1) * PAGE : m.tokens;
        const entry *e = entry_of(w, page);
        assert_true(e && e->space == space && page_of(e) == i);
        assert_true(begins_with(e, tokens, end) && begins_with(&w->written[page], tokens, end));
        assert_int_equal(w->written[page].space, space);
        idle += full && w->pages->users[page] == 1;
        if (drafts == i * PAGE)
            drafts += e->draft_tokens < end - i * PAGE ? e->draft_tokens : end - i * PAGE;
    }
    assert_int_equal(m.idle_pages, idle);
    assert_int_equal(m.draft_tokens, drafts);
}

static void drop_page(world *w, int32_t page)
{
    w->idle_since[page] = ++w->drops;
    kv_pages_drop(w->pages, page);
}

static void end_sequence(world *w, sequence *s)
{
    bool backwards = draw(w, 2);
    for (int i = 0; i < s->pages; i++)
        drop_page(w, s->table[backwards ? s->pages - 1 - i : i]);
    s->running = false;
}

/* What left the tree: leaves and, of an orderly tree, idle ones behind the page that was idle for longest. */
static void check_evicted(world *w, int idle_before, int32_t oldest)
{
    int gone = 0;
    const entry top = *entry_of(w, oldest);
    for (int i = 0; i < w->entry_count;) {
        entry *e = &w->entries[i];
        if (w->pages->in_tree[e->page]) {
            i++;
            continue;
        }
        if (w->orderly)
            assert_true(e->space == top.space && begins_with(e, top.tokens, top.count));
        gone += w->pages->users[e->page] == 0;
        assert_true(w->pages->users[e->page] == 0 || !w->orderly);
        *e = w->entries[--w->entry_count];
    }
    for (int i = 0; i < w->entry_count; i++) { /* no page is left without its parent */
        const entry *e = &w->entries[i];
        bool parent = page_of(e) == 0;
        for (int j = 0; j < w->entry_count && !parent; j++)
            parent = w->entries[j].space == e->space && w->entries[j].count == page_of(e) * PAGE &&
                     begins_with(e, w->entries[j].tokens, w->entries[j].count);
        assert_true(parent);
    }
    assert_int_equal(gone, 1);
    assert_int_equal(w->pages->idle_count, idle_before - 1);
}

static bool evict_one(world *w)
{
    int idle = w->pages->idle_count;
    int32_t oldest = -1;
    for (int32_t i = 0; i < POOL; i++)
        if (kv_pages_is_idle(w->pages, i) && (oldest < 0 || w->idle_since[i] < w->idle_since[oldest]))
            oldest = i;
    int got = prefix_tree_evict(w->tree, 1);
    assert_int_equal(got, idle > 0);
    if (got)
        check_evicted(w, idle, oldest);
    return got;
}

/* Prompts that have much in common: stretches of three texts. */
static void make_tokens(world *w, sequence *s)
{
    s->space = draw(w, SPACES);
    s->count = 1 + draw(w, LONGEST);
    if (draw(w, 3) == 0)
        s->count = (s->count + PAGE - 1) / PAGE * PAGE;
    int topic = draw(w, 2), turn = draw(w, 2 * LONGEST);
    for (int i = 0; i < s->count; i++)
        s->tokens[i] = (int32_t)(random_word(99, (uint64_t)(i < turn ? topic : 2), (uint64_t)i) % 5);
}

static void start_sequence(world *w, sequence *s)
{
    make_tokens(w, s);
    view name = view_of(SPACE_NAMES[s->space]);
    int asked = draw(w, 4) ? s->count - 1 : draw(w, s->count + 1);
    prefix_match look = prefix_tree_find(w->tree, name, s->tokens, asked), m = {.copy_page = -1};
    if (draw(w, 4)) { /* now and then one computes all by itself */
        m = prefix_tree_take(w->tree, name, s->tokens, asked, s->table);
        assert_int_equal(m.tokens, look.tokens);
        for (int i = 0; i < m.full_pages; i++)
            w->pages->users[s->table[i]]--; /* as it was when the match was made */
        check_found(w, s->space, s->tokens, asked, m, s->table);
        for (int i = 0; i < m.full_pages; i++)
            w->pages->users[s->table[i]]++;
    }
    s->running = true;
    s->pages = m.full_pages;
    while (s->pages * PAGE < s->count) {
        int32_t page;
        if (!kv_pages_take(w->pages, &page)) {
            if (evict_one(w))
                continue;
            if (m.copy_page >= 0)
                drop_page(w, m.copy_page);
            end_sequence(w, s);
            return;
        }
        s->table[s->pages++] = page;
        entry *written = &w->written[page];
        written->space = s->space;
        written->count = s->pages * PAGE < s->count ? s->pages * PAGE : s->count;
        memcpy(written->tokens, s->tokens, (size_t)written->count * sizeof *s->tokens);
    }
    if (m.copy_page >= 0)
        drop_page(w, m.copy_page);
}

static void entry_set(entry *e, const sequence *s, int end, int draft_tokens, int32_t page)
{
    *e = (entry){.space = s->space, .count = end, .draft_tokens = draft_tokens, .page = page};
    memcpy(e->tokens, s->tokens, (size_t)end * sizeof *s->tokens);
}

/* The first in order of the entries that begin with the sequence's tokens up to `end` and go no further than its page. */
static entry *first_beginning_with(world *w, const sequence *s, int end)
{
    entry *first = NULL;
    for (int i = 0; i < w->entry_count; i++) {
        entry *e = &w->entries[i];
        if (e->space != s->space || page_of(e) != (end - 1) / PAGE || !begins_with(e, s->tokens, end))
            continue;
        int least = first && first->count < e->count ? first->count : e->count;
        int equal = first ? common(first->tokens, e->tokens, least) : 0;
        if (!first || (equal < least && e->tokens[equal] < first->tokens[equal]))
            first = e;
    }
    return first;
}

/* The rules of prefix_tree_insert for the page that ends at `end`; returns the page the sequence should have afterwards. */
static int32_t expect_insert(world *w, const sequence *s, int end, int draft_tokens)
{
    int i = (end - 1) / PAGE;
    int32_t page = s->table[i];
    entry *there = first_beginning_with(w, s, end);
    if (there) {
        if (there->count == end && draft_tokens > there->draft_tokens)
            entry_set(there, s, end, draft_tokens, page);
        else if (there->count == end && end % PAGE == 0)
            page = there->page;
        w->idle_since[there->page] = ++w->drops;
        return page;
    }
    for (int k = 0; k < w->entry_count; k++) {
        entry *e = &w->entries[k];
        if (e->space == s->space && page_of(e) == i && e->count < end && common(e->tokens, s->tokens, e->count) == e->count) {
            entry_set(e, s, end, draft_tokens, page);
            return page;
        }
    }
    entry_set(&w->entries[w->entry_count++], s, end, draft_tokens, page);
    return page;
}

static void insert_sequence(world *w, sequence *s)
{
    int count = draw(w, 3) ? s->count : draw(w, s->count + 1);
    int draft_tokens = w->orderly ? count : draw(w, 3) ? draw(w, count + 1) : count;
    int32_t expected[LONGEST / PAGE];
    memcpy(expected, s->table, sizeof expected);
    for (int first = 0; first < count; first += PAGE) {
        int end = first + PAGE < count ? first + PAGE : count;
        int drafts = draft_tokens < first ? 0 : draft_tokens < end ? draft_tokens - first : end - first;
        expected[first / PAGE] = expect_insert(w, s, end, drafts);
    }
    prefix_tree_insert(w->tree, view_of(SPACE_NAMES[s->space]), s->tokens, count, draft_tokens, s->table);
    for (int i = 0; i < s->pages; i++)
        assert_int_equal(s->table[i], expected[i]);
}

static void one_operation(world *w)
{
    sequence *s = &w->sequences[draw(w, SEQUENCES)];
    int what = draw(w, 100);
    if (what < 6) {
        for (int pages = draw(w, 8); pages > 0; pages--)
            evict_one(w);
    } else if (what < 7 && !w->orderly) {
        prefix_tree_clear(w->tree);
        w->entry_count = 0;
    } else if (!s->running) {
        start_sequence(w, s);
    } else if (what < 60) {
        insert_sequence(w, s);
    } else {
        end_sequence(w, s);
    }
}

static void random_work(uint64_t seed, bool orderly)
{
    world *w = mem_alloc(1, sizeof *w);
    *w = (world){.pages = kv_pages_create_ids(POOL), .seed = seed, .orderly = orderly};
    w->tree = prefix_tree_create(w->pages);
    for (int i = 0; i < 2500; i++) {
        one_operation(w);
        check_accounts(w);
    }
    assert_true(prefix_tree_count(w->tree).evicted_pages > 100);
    for (int s = 0; s < SEQUENCES; s++)
        if (w->sequences[s].running)
            end_sequence(w, &w->sequences[s]);
    assert_int_equal(w->pages->free_count + w->pages->idle_count, POOL);
    prefix_tree_clear(w->tree);
    assert_int_equal(w->pages->free_count, POOL);
    prefix_tree_destroy(w->tree);
    kv_pages_destroy(w->pages);
    free(w);
}

static void test_random_work(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++)
        random_work(seed, seed % 2);
}

#define WITH_RIG(test) cmocka_unit_test_setup_teardown(test, rig_open, rig_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_counts_idle_pages),
        WITH_RIG(test_finds_full_pages_and_a_beginning),
        WITH_RIG(test_count_cuts_a_page),
        WITH_RIG(test_copies_from_the_longest_beginning),
        WITH_RIG(test_a_beginning_with_draft_keys_is_preferred),
        WITH_RIG(test_take_makes_a_user),
        WITH_RIG(test_equal_pages_exist_once),
        WITH_RIG(test_more_draft_keys_take_the_place),
        WITH_RIG(test_draft_tokens_are_counted_within_the_match),
        WITH_RIG(test_partial_pages),
        WITH_RIG(test_a_page_grows),
        WITH_RIG(test_spaces_share_nothing),
        WITH_RIG(test_nothing_makes_no_space),
        WITH_RIG(test_many_spaces),
        WITH_RIG(test_evicts_least_recently_used_leaves),
        WITH_RIG(test_inserting_what_is_there_marks_it_as_used),
        WITH_RIG(test_pages_in_use_are_not_evicted),
        WITH_RIG(test_every_idle_page_can_be_had),
        WITH_RIG(test_idle_pages_can_be_had_after_a_clear),
        WITH_RIG(test_clear_leaves_pages_to_their_users),
        cmocka_unit_test(test_many_siblings),
        cmocka_unit_test(test_random_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
