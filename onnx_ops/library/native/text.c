/* Values as text: `str` and `repr`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

static oo_value text_of_integer(oo_state *s, oo_integer value) {
    char digits[48], *end = digits + sizeof digits, *at = end;
    unsigned __int128 rest = value < 0 ? -(unsigned __int128)value : (unsigned __int128)value;
    do *--at = (char)('0' + (int)(rest % 10));
    while (rest /= 10);
    if (value < 0) *--at = '-';
    return oo_text(s, at, (size_t)(end - at));
}

/* The shortest digits that read back as the number; returns the exponent of the first one. Independent of the locale,
   in which the two library functions agree. */
static int shortest(double value, char digits[24]) {
    char shown[64];
    for (int count = 15;; count++) {
        snprintf(shown, sizeof shown, "%.*e", count - 1, value);
        int found = strtod(shown, NULL) == value;
        int binary;
        if (!found && count < 17 && frexp(value, &binary) == 0.5) {
            /* Numbers below a power of 2 lie closer than those above, so the next decimal may be nearer in this sense. */
            char *last = strchr(shown, 'e') - 1;
            if (*last < '9') {
                ++*last;
                found = strtod(shown, NULL) == value;
            }
        }
        if (found || count == 17) break;
    }
    char *exponent = strchr(shown, 'e');
    int count = 0;
    for (char *at = shown; at < exponent; at++)
        if (*at >= '0' && *at <= '9') digits[count++] = *at;
    while (count > 1 && digits[count - 1] == '0') count--;
    digits[count] = 0;
    return atoi(exponent + 1);
}

static oo_value text_of_number(oo_state *s, double value) {
    if (isnan(value)) return oo_str(s, "nan");
    if (isinf(value)) return oo_str(s, value < 0 ? "-inf" : "inf");
    char digits[24], out[64], *at = out;
    int exponent = shortest(fabs(value), digits), count = (int)strlen(digits);
    if (signbit(value)) *at++ = '-';
    if (exponent < -4 || exponent > 15) {
        *at++ = digits[0];
        if (count > 1) *at++ = '.';
        memcpy(at, digits + 1, (size_t)(count - 1));
        at += count - 1;
        at += snprintf(at, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return oo_text(s, out, (size_t)(at - out));
    }
    for (int i = exponent < 0 ? exponent : 0; i < count || i <= exponent + 1; i++) {
        if (i == exponent + 1) *at++ = '.';
        *at++ = i >= 0 && i < count ? digits[i] : '0';
    }
    return oo_text(s, out, (size_t)(at - out));
}

static oo_value repr_of_items(oo_state *s, oo_value x, const char *begin, const char *end) {
    oo_value out = oo_str(s, begin), comma = oo_str(s, ", ");
    for (int64_t i = 0; i < x->count; i++) {
        if (i) out = oo_add(s, out, comma);
        out = oo_add(s, out, oo_repr(s, &x->as.items[i]));
    }
    if (x->kind == OO_TUPLE && x->count == 1) out = oo_add(s, out, oo_str(s, ","));
    return oo_add(s, out, oo_str(s, end));
}

static oo_value repr_of_text(oo_state *s, oo_value x) {
    for (int64_t i = 0; i < x->count; i++) {
        unsigned char c = (unsigned char)x->as.text[i];
        if (c < ' ' || c > '~' || c == '\'' || c == '\\') oo_fail(s, "NotImplementedError: repr of such a str");
    }
    oo_value quote = oo_str(s, "'");
    return oo_joined(s, 3, (oo_value[]){quote, x, quote});
}

oo_value oo_repr(oo_state *s, const oo_value *a) {
    oo_value x = a[0];
    switch (x->kind) {
    case OO_STR: return repr_of_text(s, x);
    case OO_TUPLE: return repr_of_items(s, x, "(", ")");
    case OO_LIST: return repr_of_items(s, x, "[", "]");
    case OO_MEMBER: oo_fail(s, "NotImplementedError: repr of a member");
    default: return oo_to_str(s, a);
    }
}

oo_value oo_to_str(oo_state *s, const oo_value *a) {
    oo_value x = a[0];
    switch (x->kind) {
    case OO_NONE: return oo_str(s, "None");
    case OO_BOOL: return oo_str(s, x->as.integer ? "True" : "False");
    case OO_INT: case OO_MEMBER: return text_of_integer(s, oo_integer_of(s, x));
    case OO_FLOAT: return text_of_number(s, oo_real(s, x));
    case OO_STR: return x;
    case OO_TUPLE: case OO_LIST: return oo_repr(s, a);
    default: oo_fail(s, "NotImplementedError: str of such a value");
    }
}
