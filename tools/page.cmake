# The web page as a C file: PAGE_SOURCE. The files of web/ that browsers get, and uPlot when npm has installed it there.
file(GLOB PAGE_FILES CONFIGURE_DEPENDS web/*.html web/*.js web/*.css web/*.svg)
file(GLOB PAGE_LIBRARY CONFIGURE_DEPENDS web/node_modules/uplot/dist/uPlot.iife.min.js)
set(PAGE_LIST "")
foreach(path IN LISTS PAGE_FILES)
  get_filename_component(name ${path} NAME)
  list(APPEND PAGE_LIST "${name}=${path}")
endforeach()
if(PAGE_LIBRARY)
  set(uplot ${CMAKE_SOURCE_DIR}/web/node_modules/uplot)
  list(APPEND PAGE_LIST "uplot.js=${PAGE_LIBRARY}" "uplot.css=${uplot}/dist/uPlot.min.css" "uplot-license.txt=${uplot}/LICENSE")
  list(APPEND PAGE_FILES ${PAGE_LIBRARY} ${uplot}/dist/uPlot.min.css ${uplot}/LICENSE)
else()
  message(WARNING "web/node_modules has no uPlot: the page is built without charts. \"npm ci\" in web/ installs it.")
endif()
string(REPLACE ";" "|" PAGE_LIST "${PAGE_LIST}")
set(PAGE_SOURCE ${CMAKE_BINARY_DIR}/page_files.c)
# The list of names is part of the command, so that a file that comes or goes makes the C file anew.
add_custom_command(OUTPUT ${PAGE_SOURCE}
  COMMAND ${CMAKE_COMMAND} "-DOUT=${PAGE_SOURCE}" "-DFILES=${PAGE_LIST}" -P ${CMAKE_SOURCE_DIR}/tools/embed.cmake
  DEPENDS ${PAGE_FILES} ${CMAKE_SOURCE_DIR}/tools/embed.cmake
  COMMENT "Embedding the page" VERBATIM)
