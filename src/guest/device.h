/*
 * Devices by what sysfs says about them: a disk by its serial, a port by its name. The order in
 * which the kernel numbers them says nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The longest path of a device that is looked for. */
#define DEVICE_PATH_MAX 64

/*
 * Reads a short attribute of a device, the file directory/device/attribute, into out of size bytes
 * without the newline at its end. False when there is none.
 */
bool device_attribute(const char *directory, const char *device, const char *attribute, char *out,
		      size_t size);

/*
 * Finds the device below a directory of sysfs ("/sys/block") whose attribute has the value, and
 * writes "/dev/NAME" to ret_path of size bytes. False when there is none.
 */
bool device_find(const char *directory, const char *attribute, const char *value, char *ret_path,
		 size_t size);
