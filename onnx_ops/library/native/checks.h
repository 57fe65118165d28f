/* Checks of calls, shape inference and the choice of kernels: what the translation of the ops' Python gives. */
#ifndef OO_CHECKS_H
#define OO_CHECKS_H

#include <stdint.h>

enum { OO_MAX_INPUTS = 12, OO_MAX_OUTPUTS = 4, OO_MAX_ATTRIBUTES = 8 };

/* A dimension: size >= 0 if it is known; else -1, and its name, or NULL. */
typedef struct {
    int64_t size;
    const char *name;
} oo_dim;

/* A tensor; given: 0 for an omitted one. dtype: 0 if unknown. rank: -1 if unknown. data: NULL if its values are unknown. */
typedef struct {
    int given;
    int64_t dtype;
    int64_t rank;
    const oo_dim *dims;
    const void *data;
} oo_tensor;

/* The value of an attribute, in the member of its type; given: 0 for the default. list: int64_t or float. */
typedef struct {
    int given;
    int64_t integer;
    float number;
    const void *list;
    int64_t count;
} oo_attribute;

/* A call. op: index of the op among the translated ones. inputs: how many there are. The attributes are in the order of
   their names, the outputs in that of the schema; wanted: whether an output is requested. */
typedef struct {
    int64_t op;
    int64_t inputs;
    oo_tensor input[OO_MAX_INPUTS];
    oo_attribute attribute[OO_MAX_ATTRIBUTES];
    int wanted[OO_MAX_OUTPUTS];
} oo_call;

/* Memory that is freed as a whole. */
typedef struct oo_arena oo_arena;
oo_arena *oo_arena_new(void); /* NULL if there is no memory */
void oo_arena_free(oo_arena *arena);

/* These return NULL if the op accepts the call, else the text of the exception. What they return lives in the arena.
   node: description of the node for the text, or NULL. */

/* `Op.infer`: dtypes and shapes of all outputs of the schema. */
const char *oo_infer(oo_arena *arena, const oo_call *call, const char *node, oo_tensor output[OO_MAX_OUTPUTS]);

/* `Op.check_arrays`: of inputs with data, or without elements. */
const char *oo_check_arrays(oo_arena *arena, const oo_call *call, const char *node);

/* A field that takes the address of a native function: offset in the record KERNEL, or LOOP if `loop`. */
typedef struct {
    int loop;
    int64_t offset;
    int64_t function; /* number among the functions that were given to the translation */
} oo_place;

/* A field of the record of attributes that takes the address of a copy of these bytes. */
typedef struct {
    int64_t offset;
    const void *data;
    int64_t bytes;
} oo_list;

/* The parts of a kernel, as `runtime.kernels.Parts`; loop: NULL for `Tasks`. Addresses in records are 0. */
typedef struct {
    const void *kernel, *loop, *attributes;
    int64_t kernel_bytes, loop_bytes, attributes_bytes;
    int64_t functions, lists;
    const oo_place *function;
    const oo_list *list;
} oo_kernel_parts;

/* `kernels.compile_kernel`, for a call with known dtypes that `oo_infer` accepts; shapes are not used. */
const char *oo_kernel(oo_arena *arena, const oo_call *call, oo_kernel_parts *parts);

#endif
