#include "checks.h"

#include "values.h"

/* --- from C to values and back ----------------------------------------------------------------------------------- */

static oo_value shape_of(oo_state *s, const oo_tensor *tensor) {
    if (tensor->rank < 0) return oo_none;
    oo_value *dims = oo_allocate(s, (size_t)tensor->rank * sizeof *dims);
    for (int64_t i = 0; i < tensor->rank; i++) {
        const oo_dim *dim = &tensor->dims[i];
        dims[i] = dim->size >= 0 ? oo_int(s, dim->size) : dim->name != NULL ? oo_str(s, dim->name) : oo_none;
    }
    return oo_new(s, OO_TUPLE, 0, tensor->rank, dims);
}

static oo_value type_of(oo_state *s, const oo_tensor *tensor) {
    if (!tensor->given) return oo_none;
    oo_value dtype = tensor->dtype ? oo_int(s, tensor->dtype) : oo_none;
    return oo_new(s, OO_RECORD, oo_translated.tensor_type, 2, (oo_value[]){dtype, shape_of(s, tensor)});
}

static oo_value value_of(oo_state *s, const oo_attribute *attribute, char kind) {
    if (kind == 'i') return oo_int(s, attribute->integer);
    if (kind == 'f') return oo_float(s, attribute->number);
    oo_value list = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < attribute->count; i++)
        if (kind == 'I') oo_append(s, list, oo_int(s, ((const int64_t *)attribute->list)[i]));
        else oo_append(s, list, oo_float(s, ((const float *)attribute->list)[i]));
    return list;
}

static oo_value attributes_of(oo_state *s, const oo_op *op, const oo_call *call) {
    oo_value given = oo_new(s, OO_DICT, 0, 0, NULL);
    for (int i = 0; i < op->attributes; i++)
        if (call->attribute[i].given) oo_set_item(s, given, op->attribute[i], value_of(s, &call->attribute[i], op->kinds[i]));
    return given;
}

static oo_value wanted_of(oo_state *s, const oo_op *op, const oo_call *call) {
    oo_value wanted = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int i = 0; i < op->outputs; i++) oo_append(s, wanted, oo_bool(call->wanted[i]));
    return wanted;
}

static void tensor_of(oo_state *s, oo_value type, oo_tensor *tensor) {
    oo_value dtype = type->as.items[0], shape = type->as.items[1];
    *tensor = (oo_tensor){.given = 1, .dtype = oo_is_true(s, dtype) ? oo_word_of(s, dtype) : 0, .rank = -1};
    if (shape->kind == OO_NONE) return;
    oo_dim *dims = oo_allocate(s, (size_t)shape->count * sizeof *dims);
    for (int64_t i = 0; i < shape->count; i++) {
        oo_value dim = shape->as.items[i];
        if (dim->kind == OO_STR) dims[i] = (oo_dim){-1, dim->as.text};
        else dims[i] = (oo_dim){dim->kind == OO_NONE ? -1 : oo_word_of(s, dim), NULL};
    }
    tensor->rank = shape->count;
    tensor->dims = dims;
}

/* --- what is asked ----------------------------------------------------------------------------------------------- */

/* What is asked of which call; `error` is what came of it, and `text` says. */
typedef struct {
    const oo_call *call;
    const char *node;
    oo_tensor *output;
    oo_value error;
    const char *text;
} question;

typedef void work(oo_state *s, question *asked);

/* Do some work; returns the text of an exception. */
static const char *guarded(oo_state *s, work *own, question *asked) {
    s->error = NULL;
    s->problem = NULL;
    if (setjmp(s->jump) == 0) own(s, asked);
    return s->problem;
}

static void explain(oo_state *s, question *asked) {
    const oo_value *items = asked->error->as.items;
    oo_value node = asked->node != NULL ? oo_str(s, asked->node) : oo_none;
    oo_value fields[] = {items[0], items[1], items[2], node};
    oo_value error = oo_new(s, OO_RECORD, asked->error->type, 4, fields);
    asked->text = oo_translated.text(s, &error)->as.text;
}

static const char *answered(oo_arena *arena, work *own, question *asked) {
    oo_state state = {.arena = arena};
    const char *problem = guarded(&state, own, asked);
    if (state.error == NULL) return problem;
    asked->error = state.error;
    problem = guarded(&state, explain, asked);
    return problem != NULL ? problem : asked->text;
}

static oo_value inferred(oo_state *s, const oo_op *op, oo_value call) {
    oo_value types = oo_translated.infer(s, (oo_value[]){op->self, call});
    if (types->kind != OO_TUPLE || types->count != op->outputs) oo_fail(s, "TypeError: wrong outputs");
    return types;
}

static void infer(oo_state *s, question *asked) {
    const oo_call *call = asked->call;
    const oo_op *op = &oo_translated.op[call->op];
    oo_value inputs = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < call->inputs; i++) oo_append(s, inputs, type_of(s, &call->input[i]));
    oo_value made[] = {op->self, inputs, attributes_of(s, op, call), wanted_of(s, op, call)};
    oo_value types = inferred(s, op, oo_translated.call(s, made));
    for (int i = 0; i < op->outputs; i++) tensor_of(s, types->as.items[i], &asked->output[i]);
}

const char *oo_infer(oo_arena *arena, const oo_call *call, const char *node, oo_tensor output[OO_MAX_OUTPUTS]) {
    return answered(arena, infer, &(question){.call = call, .node = node, .output = output});
}
