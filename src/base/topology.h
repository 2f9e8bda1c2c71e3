/* Which CPUs this process may use, and which of them share memory.
 *
 * Linux describes memory nodes below /sys/devices/system/node: nodeN/cpulist holds the CPUs of node N as "0-3,8". Nodes without a CPU
 * that this process may use are left out, so a process that is bound to one socket sees one node. A kernel that knows nothing of nodes
 * has no such directory: one node with everything. */
#ifndef BASE_TOPOLOGY_H
#define BASE_TOPOLOGY_H

#include <stdbool.h>

#include "base/error.h"

#define TOPOLOGY_DIRECTORY "/sys/devices/system/node"

typedef struct topology_node {
    int id;    /* N of nodeN */
    int *cpus; /* [count] ascending */
    int count;
} topology_node;

typedef struct topology {
    topology_node *nodes; /* [node_count] ascending ids */
    int node_count;       /* >= 1 */
    int cpu_count;        /* of all nodes */
} topology;

/* The CPUs this process may use, ascending; free() releases them. Never empty. */
int *machine_cpus(int *count);
int machine_cores(void); /* how many they are */

/* Reads the nodes below a directory; allowed: the CPUs to keep, each of which must be in one node. */
bool topology_read(const char *directory, const int *allowed, int count, topology *out, error *err);
/* This machine. What cannot be understood is logged, and counts as one node. */
void topology_of_machine(topology *out);
void topology_copy(const topology *from, topology *out);
void topology_free(topology *t);

/* The node of a CPU as an index into nodes; 0 for a CPU that is in none of them. */
int topology_node_of(const topology *t, int cpu);

/* From here on the calling thread runs on these CPUs only. */
bool thread_bind(const int *cpus, int count);

/* Calls f(context, node) once for every node, each in a thread of its own that is bound to the node, and waits for all. */
bool topology_run(const topology *t, void (*f)(void *context, int node), void *context, error *err);

#endif
