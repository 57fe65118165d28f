/* What the generated tables of a library have. */
#ifndef OO_LIBRARY_H
#define OO_LIBRARY_H

#include "checks.h"
#include "runtime.h"

enum { OO_HEAP_FUNCTIONS = 3 };

/* What the translation of an op (`oo_op` of values.h) does not have. */
typedef struct {
    const char *name;
    int optional_output[OO_MAX_OUTPUTS];
    int has_optional_inputs;
} oo_operator;

/* An op for one combination of dtypes. The native functions are numbers of functions, -1 for none. */
typedef struct {
    oo_custom_op native;
    int64_t op, may_inplace, release_may_inplace;
} oo_declaration;

/* A callback of all declarations. */
typedef struct {
    size_t offset; /* in oo_custom_op */
    int64_t function;
} oo_callback;

/* The functions as compiled for a kind of processor; needs: the least one that runs them, as in oo_runs. */
typedef struct {
    const char *name, *needs;
    void *const *functions;
} oo_level;

extern const oo_operator oo_operators[];
extern oo_declaration oo_declarations[];
extern const int64_t oo_declaration_count;
extern const oo_callback oo_callbacks[];
extern const int64_t oo_callback_count;
extern const int64_t oo_heap_functions[OO_HEAP_FUNCTIONS]; /* numbers of functions, in the order of runtime.heap_record.Functions */
extern const oo_level oo_levels[]; /* the highest first */
extern const int64_t oo_level_count;

/* Whether this processor has the features of a level of the x86-64 psABI ("v2", "v3", "v4"); "" is any. */
int oo_runs(const char *level);
/* Size of the last-level cache, and number of available cores, as in `runtime.loops.compilation`. */
int64_t oo_cache_bytes(void);
int64_t oo_available_cores(void);

#endif
