/* The memory of the translated checks, which is freed as a whole, and how they end by an error. */
#include <stdlib.h>

#include "values.h"

enum { BLOCK_BYTES = 16384, ALIGNMENT = 16 };

typedef struct block {
    struct block *next;
    size_t used, size;
    _Alignas(ALIGNMENT) char data[];
} block;

struct oo_arena {
    block *first;
};

oo_arena *oo_arena_new(void) { return calloc(1, sizeof(oo_arena)); }

void oo_arena_free(oo_arena *arena) {
    if (arena == NULL) return;
    for (block *own = arena->first, *next; own != NULL; own = next) {
        next = own->next;
        free(own);
    }
    free(arena);
}

void *oo_allocate(oo_state *s, size_t bytes) {
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block *own = s->arena->first;
    if (own == NULL || own->size - own->used < bytes) {
        size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        own = malloc(sizeof(block) + size);
        if (own == NULL) oo_fail(s, "MemoryError: ");
        *own = (block){s->arena->first, 0, size};
        s->arena->first = own;
    }
    void *found = own->data + own->used;
    own->used += bytes;
    return found;
}

_Noreturn void oo_stop(oo_state *s, const char *problem) {
    s->problem = problem;
    longjmp(s->jump, 1);
}

_Noreturn void oo_raise(oo_state *s, oo_value error) {
    s->error = error;
    longjmp(s->jump, 1);
}
