"""What is used of oneDNN's C API, as C declarations for cffi.

Handles are plain pointers. Numbers of the API's enumerations are beside those who use them;
functions and numbers have been the same since version 3.0.

References
----------
oneAPI specification, oneDNN, C API of version 3: https://uxlfoundation.github.io/oneDNN
"""

__all__ = ["DECLARED"]

DECLARED = """
typedef struct { int major; int minor; int patch; const char *hash;
                 unsigned cpu_runtime; unsigned gpu_runtime; } dnnl_version_t;
typedef struct { int arg; void *memory; } dnnl_exec_arg_t;
const dnnl_version_t *dnnl_version(void);
int dnnl_get_effective_cpu_isa(void);
int dnnl_engine_create(void **engine, int kind, size_t index);
int dnnl_stream_create(void **stream, void *engine, unsigned flags);
int dnnl_memory_desc_create_with_strides(void **desc, int ndims, const int64_t *dims,
    int dtype, const int64_t *strides);
int dnnl_memory_desc_create_with_tag(void **desc, int ndims, const int64_t *dims,
    int dtype, int tag);
int dnnl_memory_desc_destroy(void *desc);
int dnnl_memory_desc_equal(const void *a, const void *b);
size_t dnnl_memory_desc_get_size(const void *desc);
int dnnl_memory_create(void **memory, const void *desc, void *engine, void *address);
int dnnl_memory_set_data_handle(void *memory, void *address);
int dnnl_memory_destroy(void *memory);
int dnnl_primitive_attr_create(void **attr);
int dnnl_primitive_attr_set_scratchpad_mode(void *attr, int mode);
int dnnl_primitive_attr_set_post_ops(void *attr, const void *chain);
int dnnl_primitive_attr_set_scales_mask(void *attr, int arg, int mask);
int dnnl_primitive_attr_destroy(void *attr);
int dnnl_post_ops_create(void **chain);
int dnnl_post_ops_append_sum(void *chain, float scale, int32_t zero_point, int dtype);
int dnnl_post_ops_append_eltwise(void *chain, int alg, float alpha, float beta);
int dnnl_post_ops_append_binary(void *chain, int alg, const void *other);
int dnnl_post_ops_destroy(void *chain);
int dnnl_matmul_primitive_desc_create(void **made, void *engine, const void *src,
    const void *weights, const void *bias, const void *dst, const void *attr);
int dnnl_inner_product_forward_primitive_desc_create(void **made, void *engine, int prop,
    const void *src, const void *weights, const void *bias, const void *dst,
    const void *attr);
int dnnl_inner_product_backward_data_primitive_desc_create(void **made, void *engine,
    const void *diff_src, const void *weights, const void *diff_dst, const void *hint,
    const void *attr);
int dnnl_inner_product_backward_weights_primitive_desc_create(void **made, void *engine,
    const void *src, const void *diff_weights, const void *diff_bias, const void *diff_dst,
    const void *hint, const void *attr);
int dnnl_convolution_forward_primitive_desc_create(void **made, void *engine, int prop,
    int alg, const void *src, const void *weights, const void *bias, const void *dst,
    const int64_t *strides, const int64_t *dilates, const int64_t *before,
    const int64_t *after, const void *attr);
int dnnl_convolution_backward_data_primitive_desc_create(void **made, void *engine, int alg,
    const void *diff_src, const void *weights, const void *diff_dst, const int64_t *strides,
    const int64_t *dilates, const int64_t *before, const int64_t *after, const void *hint,
    const void *attr);
int dnnl_convolution_backward_weights_primitive_desc_create(void **made, void *engine, int alg,
    const void *src, const void *diff_weights, const void *diff_bias, const void *diff_dst,
    const int64_t *strides, const int64_t *dilates, const int64_t *before,
    const int64_t *after, const void *hint, const void *attr);
int dnnl_deconvolution_forward_primitive_desc_create(void **made, void *engine, int prop,
    int alg, const void *src, const void *weights, const void *bias, const void *dst,
    const int64_t *strides, const int64_t *dilates, const int64_t *before,
    const int64_t *after, const void *attr);
int dnnl_batch_normalization_forward_primitive_desc_create(void **made, void *engine,
    int prop, const void *src, const void *dst, float eps, unsigned flags, const void *attr);
int dnnl_batch_normalization_backward_primitive_desc_create(void **made, void *engine,
    int prop, const void *diff_src, const void *diff_dst, const void *src, float eps,
    unsigned flags, const void *hint, const void *attr);
int dnnl_layer_normalization_forward_primitive_desc_create(void **made, void *engine,
    int prop, const void *src, const void *dst, const void *moments, float eps,
    unsigned flags, const void *attr);
int dnnl_layer_normalization_backward_primitive_desc_create(void **made, void *engine,
    int prop, const void *diff_src, const void *diff_dst, const void *src,
    const void *moments, float eps, unsigned flags, const void *hint, const void *attr);
int dnnl_eltwise_forward_primitive_desc_create(void **made, void *engine, int prop, int alg,
    const void *src, const void *dst, float alpha, float beta, const void *attr);
int dnnl_softmax_forward_primitive_desc_create(void **made, void *engine, int prop, int alg,
    const void *src, const void *dst, int axis, const void *attr);
int dnnl_softmax_backward_primitive_desc_create(void **made, void *engine, int alg,
    const void *diff_src, const void *diff_dst, const void *dst, int axis, const void *hint,
    const void *attr);
int dnnl_binary_primitive_desc_create(void **made, void *engine, int alg, const void *first,
    const void *second, const void *dst, const void *attr);
int dnnl_pooling_forward_primitive_desc_create(void **made, void *engine, int prop, int alg,
    const void *src, const void *dst, const int64_t *strides, const int64_t *kernel,
    const int64_t *dilates, const int64_t *before, const int64_t *after, const void *attr);
int dnnl_pooling_backward_primitive_desc_create(void **made, void *engine, int alg,
    const void *diff_src, const void *diff_dst, const int64_t *strides, const int64_t *kernel,
    const int64_t *dilates, const int64_t *before, const int64_t *after, const void *hint,
    const void *attr);
int dnnl_reorder_primitive_desc_create(void **made, const void *src, void *src_engine,
    const void *dst, void *dst_engine, const void *attr);
const void *dnnl_primitive_desc_query_md(const void *made, int what, int index);
int dnnl_primitive_desc_query(const void *made, int what, int index, void *result);
int dnnl_primitive_desc_next_impl(void *made);
int dnnl_primitive_desc_destroy(void *made);
int dnnl_primitive_create(void **primitive, const void *made);
int dnnl_primitive_execute(const void *primitive, void *stream, int count,
    const dnnl_exec_arg_t *args);
int dnnl_primitive_destroy(void *primitive);
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);
"""
