/* .npy files: mapped for reading, so that data larger than memory can be trained on; written for results. */

#include "ingot_program.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

static int is_one_of(const char *word, size_t length, const char *words) {
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && strncmp(at, word, length) == 0) return 1;
    return 0;
}

static const char *field(const char *path, const char *header, const char *name) {
    const char *found = strstr(header, name);
    if (!found) fail("%s is damaged: its header has no %s", path, name);
    found += strlen(name);
    return found + strspn(found, ": ");
}

static void read_header(const char *path, const char *header, const ingot_tensor *tensor, array_file *array) {
    const char *code = field(path, header, "'descr'");
    size_t length = *code == '\'' ? strcspn(code + 1, "'") : 0;
    if (!length || !is_one_of(code + 1, length, tensor->dtype->npy))
        fail("%s has elements of type %.*s, %s is %s (%s in NumPy)", path, (int)(length ? length : 1), code + 1,
             tensor->name, tensor->type, tensor->dtype->npy);
    if (strncmp(field(path, header, "'fortran_order'"), "False", 5) != 0)
        fail("%s is in Fortran order; save numpy.ascontiguousarray(x)", path);
    const char *shape = field(path, header, "'shape'");
    if (*shape++ != '(') fail("%s is damaged: its shape is no tuple", path);
    for (array->rank = 0;;) {
        shape += strspn(shape, ", ");
        if (*shape == ')') break;
        char *end;
        long long extent = strtoll(shape, &end, 10);
        if (end == shape || extent < 0 || array->rank == 32) fail("%s has an impossible shape", path);
        array->shape[array->rank++] = extent;
        shape = end;
    }
    if (array->rank != tensor->rank)
        fail("%s has %d axes, %s is %s", path, array->rank, tensor->name, tensor->type);
}

static int64_t bytes_of(const char *path, const array_file *array, const ingot_dtype *dtype) {
    int64_t bytes = dtype->bytes;
    for (int axis = 0; axis < array->rank; axis++)
        if (__builtin_mul_overflow(bytes, array->shape[axis], &bytes)) fail("%s has an impossible shape", path);
    return bytes;
}

array_file map_array(const char *path, const ingot_tensor *tensor) {
    array_file array = {0};
    struct stat status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || fstat(descriptor, &status) != 0) fail("%s cannot be read: %s", path, strerror(errno));
    if (status.st_size < 12) fail("%s is no .npy file", path);
    unsigned char *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (file == MAP_FAILED) fail("%s cannot be mapped: %s", path, strerror(errno));
    close(descriptor);
    int is_long = file[6] >= 2;
    size_t start = is_long ? 12 : 10;
    size_t length = (size_t)file[8] | (size_t)file[9] << 8;
    if (is_long) length |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
    if (memcmp(file, magic, sizeof magic) != 0 || file[6] < 1 || file[6] > 3 ||
        start + length > (size_t)status.st_size)
        fail("%s is no .npy file", path);
    char *header = allocate((int64_t)length + 1);
    memcpy(header, file + start, length);
    header[length] = '\0';
    read_header(path, header, tensor, &array);
    free(header);
    int64_t bytes = bytes_of(path, &array, tensor->dtype);
    if (bytes > (int64_t)(status.st_size - (off_t)(start + length))) fail("%s is shorter than its header says", path);
    array.data = file + start + length;
    if ((uintptr_t)array.data % (uintptr_t)tensor->dtype->bytes) { /* written by something else than NumPy */
        void *copy = allocate(bytes);
        memcpy(copy, array.data, (size_t)bytes);
        array.data = copy;
    }
    return array;
}

void write_array(const char *folder, const ingot_tensor *tensor, const int64_t *shape, const void *data) {
    char path[4096], header[1024], shape_text[768] = "";
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) fail("%s cannot be made: %s", folder, strerror(errno));
    if (snprintf(path, sizeof path, "%s/%s.npy", folder, tensor->file) >= (int)sizeof path) fail("%s: too long", folder);
    for (int axis = 0; axis < tensor->rank; axis++)
        snprintf(shape_text + strlen(shape_text), sizeof shape_text - strlen(shape_text), "%" PRId64 ", ", shape[axis]);
    const char *codes = tensor->dtype->npy;
    int length = snprintf(header, sizeof header, "{'descr': '%.*s', 'fortran_order': False, 'shape': (%s), }",
                          (int)strcspn(codes, " "), codes, shape_text);
    int padded = (10 + length + 1 + 63) / 64 * 64 - 10;
    memset(header + length, ' ', (size_t)(padded - length));
    header[padded - 1] = '\n';
    unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)padded, (unsigned char)(padded >> 8)};
    size_t bytes = (size_t)(element_count(shape, tensor->rank) * tensor->dtype->bytes);
    FILE *file = fopen(path, "wb");
    if (!file) fail("%s cannot be written: %s", path, strerror(errno));
    int is_good = fwrite(start, 1, 10, file) == 10 && fwrite(header, 1, (size_t)padded, file) == (size_t)padded &&
                  fwrite(data, 1, bytes, file) == bytes;
    if (fclose(file) != 0 || !is_good) fail("%s cannot be written: %s", path, strerror(errno));
}

/* --- looking --------------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double half_value(uint16_t bits) {
    double sign = bits >> 15 ? -1.0 : 1.0;
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction ? (double)from_bits(0x7fc00000u) : sign * (double)from_bits(0x7f800000u);
    double scale = exponent ? 1.0 : 2.0; /* subnormal numbers have the smallest exponent */
    for (int n = 25; n > exponent; n--) scale *= 0.5;
    for (int n = 25; n < exponent; n++) scale *= 2.0;
    return sign * scale * (double)(fraction + (exponent ? 1024 : 0));
}

double number_at(const ingot_dtype *dtype, const void *data, int64_t index) {
    const char *name = dtype->name;
    int is_float = name[0] == 'f';
    switch (dtype->bytes) {
    case 8:
        if (is_float) return ((const double *)data)[index];
        return name[0] == 'u' ? (double)((const uint64_t *)data)[index] : (double)((const int64_t *)data)[index];
    case 4:
        if (is_float) return (double)((const float *)data)[index];
        return name[0] == 'u' ? (double)((const uint32_t *)data)[index] : (double)((const int32_t *)data)[index];
    case 2:
        if (is_float) return half_value(((const uint16_t *)data)[index]);
        if (strcmp(name, "bf16") == 0) return (double)from_bits((uint32_t)((const uint16_t *)data)[index] << 16);
        return name[0] == 'u' ? (double)((const uint16_t *)data)[index] : (double)((const int16_t *)data)[index];
    default:
        return name[0] == 'i' ? (double)((const int8_t *)data)[index] : (double)((const uint8_t *)data)[index];
    }
}

void print_array(const ingot_tensor *tensor, const int64_t *shape, const void *data) {
    int64_t count = element_count(shape, tensor->rank);
    printf("%s: %s[", tensor->name, tensor->dtype->name);
    for (int axis = 0; axis < tensor->rank; axis++) printf("%s%" PRId64, axis ? ", " : "", shape[axis]);
    printf("]");
    for (int64_t n = 0; n < count && n < 8; n++) printf(" %.9g", number_at(tensor->dtype, data, n));
    printf(count > 8 ? " ...\n" : "\n");
}
