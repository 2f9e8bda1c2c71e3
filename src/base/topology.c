#define _GNU_SOURCE /* cpu_set_t, sched_getaffinity, pthread_setaffinity_np */
#include "base/topology.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"

enum { MOST_CPUS = 1 << 20, CPULIST_MAX_BYTES = 1 << 20 };

/* ---- what this process may use ---- */

/* The kernel refuses a set smaller than its own, so the set grows until it is taken. */
static cpu_set_t *allowed_set(size_t *cpus)
{
    for (*cpus = CPU_SETSIZE; *cpus <= MOST_CPUS; *cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(*cpus);
        if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(*cpus), set) == 0)
            return set;
        CPU_FREE(set);
    }
    return NULL;
}

int *machine_cpus(int *count)
{
    size_t cpus;
    cpu_set_t *set = allowed_set(&cpus);
    size_t bytes = CPU_ALLOC_SIZE(cpus);
    int found = set ? CPU_COUNT_S(bytes, set) : 0;
    int *list = mem_alloc(found > 0 ? (size_t)found : 1, sizeof *list); /* CPU 0 when nothing is known */
    *count = 0;
    for (size_t cpu = 0; *count < found; cpu++)
        if (CPU_ISSET_S(cpu, bytes, set))
            list[(*count)++] = (int)cpu;
    *count = *count > 0 ? *count : 1;
    CPU_FREE(set);
    return list;
}

int machine_cores(void)
{
    int count;
    free(machine_cpus(&count));
    return count;
}

bool thread_bind(const int *cpus, int count)
{
    size_t most = 0;
    for (int i = 0; i < count; i++)
        most = (size_t)cpus[i] >= most ? (size_t)cpus[i] + 1 : most;
    cpu_set_t *set = CPU_ALLOC(most);
    size_t bytes = CPU_ALLOC_SIZE(most);
    if (!set)
        return false;
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < count; i++)
        CPU_SET_S((size_t)cpus[i], bytes, set);
    bool ok = pthread_setaffinity_np(pthread_self(), bytes, set) == 0;
    CPU_FREE(set);
    return ok;
}

/* ---- nodes ---- */

/* One number of a list; false when there is none at *s or it is too large for a CPU. */
static bool parse_cpu(const char **s, int *out)
{
    if (!isdigit((unsigned char)**s))
        return false;
    char *end;
    errno = 0;
    long n = strtol(*s, &end, 10);
    *s = end;
    *out = (int)n;
    return errno == 0 && n < MOST_CPUS;
}

/* Marks the CPUs of "0-3,8" in has[MOST_CPUS]. An empty list is a node without CPUs. */
static bool parse_cpulist(const char *s, bool *has)
{
    while (*s && *s != '\n') {
        int first, last;
        if (!parse_cpu(&s, &first))
            return false;
        last = first;
        if (*s == '-' && (s++, !parse_cpu(&s, &last)))
            return false;
        for (int cpu = first; cpu <= last; cpu++)
            has[cpu] = true;
        if (*s == ',')
            s++;
        else if (*s && *s != '\n')
            return false;
    }
    return true;
}

/* N of "nodeN"; -1 for any other name. */
static int node_id(const char *name)
{
    int id, length = 0;
    if (strncmp(name, "node", 4) != 0 || !isdigit((unsigned char)name[4]) || sscanf(name + 4, "%9d%n", &id, &length) != 1)
        return -1;
    return name[4 + length] == '\0' ? id : -1;
}

/* Adds the node with those of its CPUs that are allowed, if there are any. */
static void add_node(topology *t, int id, const bool *has, const int *allowed, int count)
{
    topology_node n = {.id = id, .cpus = mem_alloc((size_t)count, sizeof *n.cpus)};
    for (int i = 0; i < count; i++)
        if (has[allowed[i]])
            n.cpus[n.count++] = allowed[i];
    if (n.count == 0) {
        free(n.cpus);
        return;
    }
    t->nodes = mem_grow(t->nodes, (size_t)t->node_count + 1, sizeof *t->nodes);
    t->nodes[t->node_count++] = n;
    t->cpu_count += n.count;
}

static bool read_node(const char *directory, int id, const int *allowed, int count, topology *out, error *err)
{
    text path = {0}, list = {0};
    bool *has = mem_alloc(MOST_CPUS, sizeof *has);
    text_add_format(&path, "%s/node%d/cpulist", directory, id);
    bool ok = file_read(path.data, CPULIST_MAX_BYTES, &list, err);
    if (ok && !parse_cpulist(list.length ? list.data : "", has))
        ok = error_set(err, ERROR_INPUT, "%s: expected a list of CPUs such as \"0-3,8\", found \"%.60s\"", path.data, list.data);
    if (ok)
        add_node(out, id, has, allowed, count);
    free(has);
    text_free(&path);
    text_free(&list);
    return ok;
}

static int compare_nodes(const void *a, const void *b)
{
    return ((const topology_node *)a)->id - ((const topology_node *)b)->id;
}

static void one_node(const int *cpus, int count, topology *out)
{
    *out = (topology){0};
    bool *has = mem_alloc(MOST_CPUS, sizeof *has);
    for (int i = 0; i < count; i++)
        has[cpus[i]] = true;
    add_node(out, 0, has, cpus, count);
    free(has);
}

bool topology_read(const char *directory, const int *allowed, int count, topology *out, error *err)
{
    *out = (topology){0};
    DIR *d = opendir(directory);
    if (!d) {
        if (errno != ENOENT)
            return error_set_errno(err, ERROR_RUNTIME, "cannot read directory %s", directory);
        one_node(allowed, count, out);
        return true;
    }
    bool ok = true;
    for (const struct dirent *e; ok && (e = readdir(d)) != NULL;) {
        int id = node_id(e->d_name);
        ok = id < 0 || read_node(directory, id, allowed, count, out, err);
    }
    closedir(d);
    if (ok && out->cpu_count != count)
        ok = error_set(err, ERROR_INPUT, "%s: of the %d CPUs that this process may use %d are in a node; expected each to be in one",
                       directory, count, out->cpu_count);
    if (!ok) {
        topology_free(out);
        return false;
    }
    qsort(out->nodes, (size_t)out->node_count, sizeof *out->nodes, compare_nodes);
    return true;
}

void topology_of_machine(topology *out)
{
    int count;
    int *cpus = machine_cpus(&count);
    error err = {0};
    if (!topology_read(TOPOLOGY_DIRECTORY, cpus, count, out, &err)) {
        log_warning("%s; memory counts as one node", err.text);
        one_node(cpus, count, out);
    }
    free(cpus);
}

void topology_copy(const topology *from, topology *out)
{
    *out = *from;
    out->nodes = mem_alloc((size_t)from->node_count, sizeof *out->nodes);
    for (int i = 0; i < from->node_count; i++) {
        const topology_node *n = &from->nodes[i];
        out->nodes[i] = *n;
        out->nodes[i].cpus = mem_copy(n->cpus, (size_t)n->count * sizeof *n->cpus);
    }
}

void topology_free(topology *t)
{
    for (int i = 0; i < t->node_count; i++)
        free(t->nodes[i].cpus);
    free(t->nodes);
    *t = (topology){0};
}

int topology_node_of(const topology *t, int cpu)
{
    for (int i = 0; i < t->node_count; i++)
        for (int j = 0; j < t->nodes[i].count; j++)
            if (t->nodes[i].cpus[j] == cpu)
                return i;
    return 0;
}

/* ---- one thread per node ---- */

typedef struct node_call {
    const topology_node *where;
    void (*f)(void *context, int node);
    void *context;
    int node;
} node_call;

static void *call_on_node(void *argument)
{
    const node_call *c = argument;
    if (!thread_bind(c->where->cpus, c->where->count))
        log_warning("cannot bind a thread to the CPUs of memory node %d; its data may lie on another node", c->where->id);
    c->f(c->context, c->node);
    return NULL;
}

bool topology_run(const topology *t, void (*f)(void *context, int node), void *context, error *err)
{
    node_call *calls = mem_alloc((size_t)t->node_count, sizeof *calls);
    pthread_t *handles = mem_alloc((size_t)t->node_count, sizeof *handles);
    int started = 0;
    for (; started < t->node_count; started++) {
        calls[started] = (node_call){&t->nodes[started], f, context, started};
        if (pthread_create(&handles[started], NULL, call_on_node, &calls[started]) != 0)
            break;
    }
    for (int i = 0; i < started; i++)
        pthread_join(handles[i], NULL);
    bool ok = started == t->node_count ||
        error_set(err, ERROR_RUNTIME, "cannot start a thread for memory node %d (%d of %d)", t->nodes[started].id, started + 1,
                  t->node_count);
    free(handles);
    free(calls);
    return ok;
}
