package packet

// For the tests, which share frames with those of the kernel.

const MaxInnerOffset = maxInnerOffset

var IsExtension = isExtension
