/* In place of the GPU device, in builds without a GPU compiler. */
#include "device/device.h"

device *gpu_device_create(const model *m, const device_limits *limits, error *err)
{
    (void)m, (void)limits;
    error_set(err, ERROR_DEVICE, "this build has no GPU support (it was configured without nvcc); use --device cpu, or install CUDA and "
              "build again");
    return NULL;
}
