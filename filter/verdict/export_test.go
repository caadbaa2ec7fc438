package verdict

// For TestDecide, which shares its frames with the tests of the kernel.
var SetOf = set
